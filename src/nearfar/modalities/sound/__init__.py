"""Sound: recordings, seen as stretches of samples by a convolutional and recurrent network, compared with
MFCC."""

from nearfar.modalities.base import Modality, ViewFamily
from nearfar.modalities.sound.data import Recordings, SoundDescription, SoundReader
from nearfar.modalities.sound.networks import SoundNetworks
from nearfar.modalities.sound.show import SoundPresenter
from nearfar.modalities.sound.views import Window

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
