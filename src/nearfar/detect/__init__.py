"""Object detection with a pretrained backbone: torchvision's R-CNNs on a feature pyramid.

run --detect.run.detect_run--> {"pretrained": {"bbox": {"map": …}}, "untrained": {…}}      COCO's figures, the same schedule for both
"""
