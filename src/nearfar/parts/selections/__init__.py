"""Which candidates count. A selection maps scores to scores.

    Everyone      all but the anchor itself
    Ball, Ring    by rank in similarity
    Cave          by cluster: negatives from the anchor's own
    Group         by what the data know: negatives of the same speaker
    Neighbours    by both: negatives near the anchor; those in its clusters are positives, or (keep=annulus) left out
    Accept        by chance: a coin for each candidate, its bias learned
    Labelled      positives by label
    Others        by label: negatives with a different label
    Hard          all, weighted by similarity
    Proposal      by chance: the similar more often, the anchor weighted in return
    Chain         several in turn: labelled+ring

Cave and Neighbours remember clusters of all instances; `refresh` renews them, nothing else does.
"""

from nearfar.parts.joined import Joinable
from nearfar.parts.selections.accept import Accept
from nearfar.parts.selections.basic import Chain, Everyone, Hard
from nearfar.parts.selections.clusters import Cave
from nearfar.parts.selections.groups import Group, Labelled, Others
from nearfar.parts.selections.neighbours import Neighbours
from nearfar.parts.selections.proposal import Proposal
from nearfar.parts.selections.ring import Ball, Ring

PARTS = Joinable(
    {
        "everyone": Everyone,
        "ball": Ball,
        "ring": Ring,
        "cave": Cave,
        "group": Group,
        "neighbours": Neighbours,
        "accept": Accept,
        "labelled": Labelled,
        "others": Others,
        "hard": Hard,
        "proposal": Proposal,
    },
    "selection",
    Chain,
    between=", then ",
    traits={"remembers_instances": any, "ranks_by_score": any, "weights_negatives": any, "keeps_all": all},
)
