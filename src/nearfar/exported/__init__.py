"""Exports a trained encoder to a folder: `nearfar.export(run, to)`.

model.safetensors   weights, under the keys of torchvision, timm or the module's own
config.json         architecture, preprocessing, how it was trained, digests
load.py             the same in Python: `encoder()` and `preprocess(image)`, without nearfar
README.md           the model card
model.onnx · model.pt2 · projector/      on request
"""
