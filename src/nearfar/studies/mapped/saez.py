"""Sáez Maldonado 2021, number by number."""

CITED = "Sáez Maldonado 2021"
ABOUT = "mutual information in self-supervised learning, a thesis"
ROWS = r"""
Eq. 1 | the normal density | - | no claim | a definition
Eq. 2-3 | conditioning lowers entropy | pytest tests/estimate/test_estimate_info.py | tested | `nf.info.conditional_entropy`
Eq. 4 | forms of mutual information | pytest tests/estimate/test_estimate_info.py | tested | `nf.info.mutual_information`
Eq. 5-6 | Donsker-Varadhan, and the gap | pytest tests/bounds/test_bounds_laws.py | tested | `nf.DonskerVaradhan`
Eq. 7 | likelihood of logistic regression | pytest tests/evaluate/test_evaluate_linear.py | tested | the probe reaches scikit-learn's optimum
Eq. 8-11 | NCE by logistic regression | pytest tests/estimate/test_estimate_density.py | tested | -
Eq. 12 | information with a context | pytest tests/estimate/test_estimate_info.py | tested | -
Eq. 13-16 | InfoNCE, its best critic, its bound | pytest tests/bounds/test_bounds_laws.py | tested | -
Eq. 17-18 | triplet loss | nearfar pretrain triplet DATA --out RUN | tested | tests/bounds/test_bounds_laws.py
Eq. 19 | (N+1)-tuple loss | nearfar pretrain tuple DATA --out RUN | tested | tests/bounds/test_bounds_laws.py
Eq. 20 | N-pair-mc loss | nearfar pretrain npair DATA --out RUN | tested | tests/bounds/test_bounds_laws.py
Eq. 21-22 | N-pair-mc is InfoNCE | pytest tests/bounds/test_bounds_truth.py | tested | -
Eq. 23 | NT-Xent of a pair | pytest tests/losses/test_losses_peers.py | tested | -
Eq. 24 | NT-Xent of a batch | pytest tests/bounds/test_bounds_laws.py | corrected | over the N pairs in both orders, divided by 2N; printed to 2N with index 2k
Eq. 25 | BYOL's loss | nearfar pretrain byol DATA --out RUN | corrected | only the online network has a predictor (sec. 8.1 gives both one); tests/core/test_core_method.py
Thm 2.1.1 | Bayes | - | no claim | -
Thm 3.2.1 | Donsker-Varadhan | pytest tests/bounds/test_bounds_truth.py | tested | in expectation; from a sample it is not covered
Thm 4.1 | NCE has one maximum, at the data | nearfar study nce-density | reproduced | -
Cor. 1 | information is not negative, and 0 for independence alone | pytest tests/estimate/test_estimate_info.py | tested | -
Cor. 2 | Donsker-Varadhan over a class of functions | pytest tests/bounds/test_bounds_laws.py | tested | MINE
Prop. 1 | KL is not negative | pytest tests/estimate/test_estimate_info.py | tested | `nf.info.kl`
Prop. 2 | entropy is between 0 and the log of the number of values | pytest tests/estimate/test_estimate_info.py | tested | -
Prop. 3 | conditional entropy | pytest tests/estimate/test_estimate_info.py | tested | -
Prop. 4 | invariance under homeomorphism | pytest tests/estimate/test_estimate_mi.py | tested | -
Prop. 5 | Barber-Agakov | pytest tests/bounds/test_bounds_laws.py | tested | -
Prop. 6 | the posterior of NCE | pytest tests/estimate/test_estimate_density.py | tested | -
Prop. 7 | InfoNCE is a lower bound | pytest tests/bounds/test_bounds_search.py | tested | -
Prop. 8 | the best views share least | nearfar study infomin | in small | an inverted U; the condition I(v; y) = I(x; y) is measured beside it
Prop. 9 | Jensen | - | no claim | -
Def. 5.1 | the InfoMin principle | nearfar study infomin | in small | linear accuracy is highest between the ends
Ex. 1-4 | illustrations | - | no claim | -
Ex. 5 | entropy of a coin | pytest tests/estimate/test_estimate_info.py | tested | `nf.info.entropy`
Ex. 6-7 | illustrations | - | no claim | -
Alg. 1 | SimCLR | nearfar pretrain simclr DATA --out RUN | tested | against a reference in tests/core/test_core_method.py; as Figure 19
Table 1 | ResNet-18 | nearfar pretrain simclr DATA --out RUN backbone=resnet18 | tested | torchvision's, with a 3 x 3 stem on small images; tests/encoders/test_encoders_laws.py
Table 2 | SimCLR and BYOL on ImageNet | - | not feasible here | no ImageNet; quoted by the thesis from the papers
Table 3-4 | batch x temperature x jitter, ResNet-18 | nearfar study thesis-simclr | in small | all cells, 2 seeds: colder is better (+1.2 points from T 1 to 0.25), the larger batch is not (-0.6), jitter cannot be told apart
Table 5 | ResNet-50 | nearfar pretrain simclr DATA --out RUN backbone=resnet50 | tested | torchvision's; tests/encoders/test_encoders_laws.py
Table 6-7 | the deeper network | nearfar study thesis-simclr tables=6 | in small | a wider network in its place is better by 1.7 points (3.4 there); slipped rows are placed by their steps
Table 8-10 | blur | nearfar study thesis-simclr tables=8 | not found here | -0.1 points for blur, 95 % interval -0.9 to +0.7, where the thesis has +0.3; slipped rows are placed by their steps
Table 11 | the best of all | nearfar study thesis-simclr | in small | the best of our 69 cells is 36.4 %; 86.2 is the highest of some sixty models on the test set, and so an optimistic figure
Table 12-13 | BYOL over the batch | nearfar study thesis-byol | refuted here | multiples of one over the batch: accuracies of single batches, not of the test set; of our own arms BYOL is more sensitive to the batch than SimCLR, in both seeds
Table 14-16 | BYOL with the deeper network | nearfar study thesis-byol | refuted here | as Tables 12 and 13: 100 % is one batch
Table 17-19 | plans and costs of the thesis | - | no claim | -
Fig. 1 | entropies as a Venn diagram | - | no claim | -
Fig. 2-9 | distributions, activations, networks | - | no claim | illustrations
Fig. 10 | rotation and flip | nearfar pretrain simclr DATA --out RUN views.rotate=0.5 | reproduced | the views are shown in the report
Fig. 11 | random crop | nearfar report RUN | reproduced | the strip of views
Fig. 12 | histogram before and after a crop | nearfar report RUN | reproduced | the report's section on what views do to pictures, over many of them
Fig. 13 | colour jitter | nearfar pretrain simclr DATA --out RUN views.strength=1 | reproduced | -
Fig. 14 | histogram before and after jitter | nearfar report RUN | reproduced | as Figure 12
Fig. 15 | entropy of a coin | pytest tests/estimate/test_estimate_info.py | tested | -
Fig. 16 | CPC's framework | nearfar recipes cpc | no claim | a drawing
Fig. 17 | anchor, positive, negative | - | no claim | -
Fig. 18 | SimCLR's framework | nearfar recipes simclr | no claim | a drawing
Fig. 19 | SimCLR's algorithm | nearfar pretrain simclr DATA --out RUN | tested | Algorithm 1
Fig. 20 | BYOL's framework | nearfar recipes byol | no claim | a drawing
Fig. 21-22 | CIFAR-10's classes, a logo | - | no claim | the thesis says 10,000 images a class; there are 6,000
Fig. 23 | the batch | nearfar study thesis-simclr tables=23a | not found here | with equal epochs the largest batch has the fewest steps, and its points cannot be told apart from those of the smallest
Fig. 24-25 | jitter and temperature | nearfar study thesis-simclr tables=3 | in small | as Table 3
Fig. 26-29 | losses while training | nearfar report RUN | no claim | the loss of every run is in its report
Fig. 30-34 | BYOL's losses | nearfar report RUN | no claim | the loss of every run is in its report
"""
