"""Images: crops and colours seen by convolutional networks, compared with raw pixels."""

from nearfar.modalities.base import Modality, ViewFamily
from nearfar.modalities.image.data import ImageDescription, ImageReader, Images
from nearfar.modalities.image.networks import ImageNetworks
from nearfar.modalities.image.show import ImagePresenter
from nearfar.modalities.image.views import IMAGE_VIEWS

IMAGE = Modality(
    name="image",
    unit="images",
    plural="pictures",
    example="photos/",
    reader=ImageReader(),
    views=ViewFamily(IMAGE_VIEWS, resizable=True),
    networks=ImageNetworks(),
    presenter=ImagePresenter(),
)

__all__ = ["IMAGE", "ImageDescription", "Images"]
