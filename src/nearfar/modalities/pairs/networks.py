"""One network for each side of a pair, of the side's modality."""

from nearfar.modalities.base import AbstractNetworks, Choice
from nearfar.modalities.pairs.data import SIDES, PairsDescription
from nearfar.modalities.pairs.views import side_choice
from nearfar.parts.encoders import InputSpec


class PairsNetworks(AbstractNetworks):
    names = ("both", "both-small")
    default = "both"
    small = "both-small"
    smallest = "both-small"

    def inputs(self, network: str, choice: Choice, description: PairsDescription) -> InputSpec:
        sides = []
        for kind, side in zip(description.kinds, description.of_sides(), strict=True):
            networks = SIDES[kind].networks
            name = networks.default if network == "both" else networks.smallest
            sides.append(networks.inputs(name, side_choice(kind), side))
        # each network receives its own view, so the shapes are not those of channels to be split
        return InputSpec(lambda view: sides[view].body(0), ((1,), (1,)), {"instances": description.instances})
