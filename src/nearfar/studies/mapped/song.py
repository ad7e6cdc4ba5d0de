"""Song & Ermon 2020, number by number."""

CITED = "Song & Ermon 2020"
ABOUT = "multi-label contrastive predictive coding"
ROWS = r"""
Eq. 1 | mutual information | pytest tests/estimate/test_estimate_info.py | tested | -
Eq. 2 | CPC | pytest tests/bounds/test_bounds_laws.py | tested | `nf.InfoNCE`
Eq. 3 | CPC bounds a divergence | pytest tests/bounds/test_bounds_truth.py | tested | Theorem 1
Eq. 4 | alpha-CPC | pytest tests/bounds/test_bounds_laws.py | tested | `nf.AlphaCPC`
Eq. 5 | ML-CPC | pytest tests/bounds/test_bounds_laws.py | tested | `nf.MultiLabelCPC` with alpha 1
Eq. 6 | alpha-ML-CPC | pytest tests/bounds/test_bounds_laws.py | tested | `nf.MultiLabelCPC`
Eq. 7 | it bounds a divergence | pytest tests/studies/test_studies_binary.py | corrected | negatives are summed over j and k, as in the appendix; the main text has k alone
Eq. 8 | it bounds mutual information | pytest tests/studies/test_studies_binary.py | tested | Corollary 2, for every n = m up to 128
Eq. 9-13 | the dual form of KL | pytest tests/bounds/test_bounds_laws.py | tested | `nf.NWJ`
Eq. 14-27 | inequalities of Propositions 1 and 2 | - | no claim | steps of the proof of Theorem 2
Eq. 28-34 | proofs of Theorems 1 and 2 | - | no claim | steps of a proof
Eq. 35-37 | CPC of two coins in closed form | nearfar study binary | reproduced | against enumeration of every batch
Thm 1 | CPC is a lower bound | pytest tests/bounds/test_bounds_search.py | tested | -
Thm 2 | alpha-ML-CPC is one, from alpha = m/(n(m-1)+1) to 1 | nearfar study gaussians arms=proven | reproduced | with negatives of each anchor's own, as the proof needs; with shared in-batch negatives, as in the experiments, it is not covered
Cor. 1 | L is at most I | pytest tests/bounds/test_bounds_search.py | tested | -
Cor. 2 | J_alpha is at most I | pytest tests/bounds/test_bounds_certificates.py | tested | -
Lemma 1 | Nguyen et al.'s dual | pytest tests/bounds/test_bounds_laws.py | tested | -
Prop. 1-2 | inequalities for Theorem 2 | - | no claim | used through Theorem 2
Ex. 1 | alpha-CPC above log 2 | nearfar study binary | reproduced | exactly 0.717438 where the paper rounds to 0.72
Alg. 1 | the loss in code | pytest tests/bounds/test_bounds_laws.py | corrected | logsumexp(log a + pos, log b + neg) - mean(pos); the printed code narrows and subtracts otherwise
Table 1 | distillation, same architectures | nearfar study distillation | not found here | smaller pairs on CIFAR-10, 5 epochs, 2 seeds: the contrast is no better than the student alone; values and gradients of KD, CRD, L and J are tested
Table 2 | distillation, other architectures | nearfar study distillation | in small | with KD the contrast beats the student alone on all three pairs by 2 to 4 points; KD alone is better still on two of them
Table 3 | MoCo-v2 with curricula of alpha | nearfar study curricula | in small | no curriculum can be told apart from CPC at three lengths, two seeds (docs/studies.md); (b) is of CIFAR-100, which is not here
Table 4 | ImageNet, 30 epochs | - | not feasible here | no ImageNet, no GPU
Fig. 1 | two coins over alpha | nearfar study binary | reproduced | -
Fig. 2 | bias and variance over m | nearfar study binary | reproduced | -
Fig. 3 | Gaussians of 20 dimensions | nearfar study gaussians | reproduced | joint critic within 0.02 nats of the paper at three alphas (docs/information.md); alpha-CPC above the truth
Fig. 4 | distillation over alpha | nearfar study distillation | not found here | two alphas of each: no difference that two seeds could show; `nearfar distill` takes any
"""
