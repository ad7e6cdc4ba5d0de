"""Wu et al. 2021, number by number."""

CITED = "Wu et al. 2021"
ABOUT = "conditional negatives: Ring"
ROWS = r"""
Eq. 1 | InfoNCE with k negatives | pytest tests/bounds/test_bounds_laws.py | tested | -
Eq. 2 | the objective for views | nearfar pretrain simclr DATA --out RUN | tested | tests/core/test_core_method.py
Eq. 3 | instance discrimination with a memory bank | nearfar pretrain instdisc DATA --out RUN | tested | tests/core/test_core_method.py
Eq. 4 | MoCo with a queue | nearfar pretrain moco-v1 DATA --out RUN | tested | tests/core/test_core_method.py
Eq. 5 | Local Aggregation | nearfar pretrain la DATA --out RUN | tested | tests/selections/test_selections_clusters.py
Thm 3.1 | conditional negatives keep the bound | pytest tests/bounds/test_bounds_truth.py | corrected | any cut from below keeps it; with a cut from above every kept e^f must reach its mean for the anchor, else there is a counter-example (docs/certificates.md)
Thm 3.2 | less variance, more bias | nearfar study bias-variance | reproduced | where the theorem's condition holds; at every k of the study
Alg. 1 | MoCoRing | nearfar pretrain moco-ring DATA --out RUN | corrected | dot products of embeddings, not of images; the positive stays in the sum
Table 1 | Ring on IR, CMC, MoCo | nearfar study ring | not found here | CIFAR-10, 10 epochs: within the spread of seeds but for CMC, which loses; after 100 epochs rings are -0.3, +0.3 and +0.7 points from their bases before pooling, not told apart (`nearfar study family --long`, two seeds); 300 epochs of ResNet-18 at 224 pixels were not feasible
Table 2 | without annealing, without the inner edge | nearfar study ring | in small | annealing helps kNN by 0.5 points with two seeds, linear and the inner edge cannot be told apart; policies: `nearfar study annealing`
Table 3 | transfer from CIFAR-10 | nearfar evaluate RUN --train A --data B | not feasible here | the target sets are not here; CIFAR-10 to Imagenette and digits is in docs/evaluation.md
Table 4 | ImageNet representations, detection | nearfar detect RUN --train A --data B | not feasible here | no ImageNet, no GPU; the command is run on 128 pictures of COCO (docs/detection.md)
Table 5 | how loose CNCE is | nearfar study cnce-toy | in small | the value falls as the percentile rises; its positive values come out only if encoders are trained on by CNCE, and the one at w = 10 does not (docs/information.md)
Table 6 | Cave and +C_i | nearfar study family | not found here | worse than the base here, or equal
Fig. 1 | ball and ring around an instance | nearfar report RUN | no claim | the report shows which negatives count, on the run's own pictures
Fig. 2 | thresholds and annealing policies | nearfar study annealing | in small | (b, c) policies end alike, as told; (a) `nearfar study thresholds`
"""
