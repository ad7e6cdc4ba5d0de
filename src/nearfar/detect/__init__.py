"""A backbone under a detector: boxes (Faster R-CNN), masks (Mask R-CNN) and keypoints, by torchvision, on pyramids of its stages.

run --detect.run.detect_run--> {"pretrained": {"bbox": {"map": …}}, "untrained": {…}}      COCO's figures, the same schedule for both
"""
