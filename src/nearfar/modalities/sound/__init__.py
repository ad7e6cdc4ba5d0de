"""Sound: stretches of recordings, a convolutional and recurrent network, MFCC as a baseline."""

from nearfar.core.method import Method
from nearfar.errors import UserError
from nearfar.modalities.base import AbstractNetworks, Choice, Modality, ViewFamily
from nearfar.modalities.sound.data import Recordings, SoundDescription, SoundReader
from nearfar.modalities.sound.show import SoundPresenter
from nearfar.modalities.sound.views import Window
from nearfar.parts.encoders import ConvGRU, InputSpec, Predictive

WIDTH, CONTEXT = 64, 128  # of the network, unless the encoders bring their own


class SoundNetworks(AbstractNetworks):
    names = ("conv-gru",)
    default = "conv-gru"
    smallest = "conv-gru"

    def inputs(self, network: str, choice: Choice, description: SoundDescription) -> InputSpec:
        context = {"instances": description.instances, "samples": choice["samples"]}
        shape = (2, choice["samples"])
        return InputSpec(lambda view: ConvGRU(WIDTH, CONTEXT), (shape,) * choice["count"], context)

    def check_method(self, data: Recordings, method: Method) -> None:
        """Stops where most recordings have no frame to predict."""
        encoders = method.encoders
        if not isinstance(encoders, Predictive):
            return
        shortest = encoders.steps * encoders.listener.hop + 1
        short = int((data.lengths < shortest).sum())
        if 2 * short > len(data):
            raise UserError(
                f"encoders.steps was {encoders.steps}: {short} of {len(data)} recordings are shorter than "
                "that number of frames of "
                f"{encoders.listener.hop} samples; use fewer encoders.steps or smaller encoders.strides"
            )


SOUND = Modality(
    name="sound",
    unit="recordings",
    plural="recordings",
    example="recordings/",
    reader=SoundReader(),
    views=ViewFamily({"window": Window}),
    networks=SoundNetworks(),
    presenter=SoundPresenter(),
)

__all__ = ["SOUND", "Recordings", "SoundDescription"]
