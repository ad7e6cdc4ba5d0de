"""Song & Ermon 2020, number by number."""

CITED = "Song & Ermon 2020"
ABOUT = "multi-label contrastive predictive coding"
ROWS = r"""
Eq. 1 | mutual information | tests/estimate/test_estimate_info.py::test_mutual_information_is_uncertainty_removed | tested | `mutual_information`
Eq. 2 | CPC | tests/bounds/test_bounds_laws.py::test_value_and_gradient_equal_the_reference | tested | `infonce`
Eq. 3 | CPC bounds a divergence | tests/bounds/test_bounds_enumerated.py::test_cpc_and_ml_cpc_bound_any_divergence | tested | `Eq. 3`, enumerated for 40 random pairs P, Q of three states, m from 2 to 4, not only a joint and its product
Eq. 4 | alpha-CPC | tests/bounds/test_bounds_laws.py::test_value_and_gradient_equal_the_reference | tested | `alpha_cpc`
Eq. 5 | ML-CPC | tests/bounds/test_bounds_laws.py::test_value_and_gradient_equal_the_reference | tested | `multi_label` with alpha 1
Eq. 6 | alpha-ML-CPC | tests/bounds/test_bounds_laws.py::test_value_and_gradient_equal_the_reference | tested | `multi_label`
Eq. 7 | alpha-ML-CPC bounds a divergence | tests/bounds/test_bounds_enumerated.py::test_cpc_and_ml_cpc_bound_any_divergence | tested | `Eq. 7`, enumerated for 40 random pairs P, Q of three states, m from 2 to 4, not only a joint and its product; erratum: the main text sums negatives over k only, the appendix over j and k
Eq. 8 | it bounds mutual information | tests/studies/test_studies_binary.py::test_ml_cpc_within_its_range_never_exceeds_the_information | tested | `Cor. 2` for two equal fair coins and their best critic, every n = m from 2 to 128, at the least alpha, half-way and 1; below the range it is exceeded. Any critic: the row of Cor. 2
Eq. 9-13 | the dual form of KL | tests/bounds/test_bounds_enumerated.py::test_the_dual_of_kl_is_reached_by_the_log_ratio_and_by_no_other | tested | `Eq. 9-13`: Eq. 9 and 13 for 20 pairs P, Q and one other T each; Eq. 10-12 are the steps between them, the same with T shifted by one
Eq. 14-23 | Proposition 1 | tests/bounds/test_bounds_enumerated.py::test_propositions_of_exchangeable_variables | tested | `Eq. 14-23` for alpha up to 1; false above (see Prop. 1)
Eq. 24 | Proposition 2 | tests/bounds/test_bounds_enumerated.py::test_propositions_of_exchangeable_variables | tested | `Eq. 24-27`: the inequality, for alpha up to m
Eq. 25-27 | its proof | tests/bounds/test_bounds_enumerated.py::test_the_proof_of_proposition_2_lacks_a_weight | tested | erratum: `Eq. 25-26` need a weight (m - alpha) / t, else 1 > 4 / 5; and Eq. 27, whose weight is printed (t - t alpha) / (t - 1) and so negative above 1, is bounded by Prop. 1 above 1, which is false
Eq. 28-34 | proofs of Theorems 1 and 2 | docs/certificates.md | proved | "ML-CPC", which does not take pairs with one anchor for independent, as these steps do when Q is a product; Eq. 33 is printed without its log
Eq. 35-37 | CPC of two coins in closed form | tests/studies/test_studies_binary.py::test_mean_and_variance_are_those_of_all_batches | tested | against the `moments` of all batches
Thm 1 | CPC is a lower bound | tests/bounds/test_bounds_enumerated.py::test_cpc_and_ml_cpc_bound_any_divergence | tested | `Thm 1`, enumerated for 40 random pairs P, Q of three states, m from 2 to 4, not only a joint and its product; for mutual information it is proved (Cor. 1); of two samples `nf.estimate_kl(p, q, bound=...)`
Thm 2 | alpha-ML-CPC is one, from alpha = m/(n(m-1)+1) to 1 | docs/certificates.md | proved | "ML-CPC", up to alpha = m, with negatives of each anchor's own; with shared ones, as in the experiments, it is open. `nearfar study gaussians arms=proven`: 9.20 of 10 nats
Cor. 1 | L is at most I | docs/certificates.md | proved | "InfoNCE"; and a search by gradient (tests/bounds/test_bounds_search.py)
Cor. 2 | J_alpha is at most I | tests/bounds/test_bounds_enumerated.py::test_ml_cpc_from_its_least_alpha_to_m_never_exceeds_the_information | tested | `MultiLabelCPC` over worlds and alphas; proved in docs/certificates.md
Lemma 1 | Nguyen et al.'s dual | tests/bounds/test_bounds_enumerated.py::test_the_dual_of_kl_is_reached_by_the_log_ratio_and_by_no_other | tested | `Lemma 1`
Prop. 1 | a mean of shares is at most 1/alpha | tests/bounds/test_bounds_enumerated.py::test_propositions_of_exchangeable_variables | tested | `Prop. 1` holds up to alpha = 1; erratum: printed up to 2m/(m+1), where equal variables give 1 > 1/alpha
Prop. 2 | and at most 1 from alpha = 1 on | tests/bounds/test_bounds_enumerated.py::test_propositions_of_exchangeable_variables | tested | `Prop. 2` up to alpha = m, where the paper has m/2; its proof uses Prop. 1 above 1, ours convexity (docs/certificates.md). alpha-CPC is then a bound, enumerated in the same file
Ex. 1 | alpha-CPC above log 2 | tests/bounds/test_bounds_truth.py::test_binary_example | tested | exactly `0.717438` where the paper rounds to 0.72
Alg. 1 | the loss in code | tests/bounds/test_bounds_truth.py::test_ml_cpc_equals_its_kl_form | tested | `kl_div`; erratum: the code of App. B narrows by m, leaves the positives without a dimension and subtracts their sum
Table 1 | distillation, same architectures | nearfar study distillation pairs=wrn-16-2>wrn-10-1,resnet20>resnet8,resnet8x2>resnet8 | not reproduced | CIFAR-10, 5 epochs, 2 seeds: no contrast alone above the student alone (docs/results/distillation.md); values and gradients of all terms are tested (tests/distill/test_distill_references.py)
Table 2 | distillation, other architectures | nearfar study distillation pairs=vgg8>mobilenetv2x0.25,resnet8x2>shufflenetv2x0.5,wrn-16-2>shufflenetv2x0.5 | not reproduced | CIFAR-10, 5 epochs, 2 seeds: contrast alone, as in the paper (App. C.3), is 0.5 to 2.2 points above the student alone and below KD on all three pairs; KD with contrast is below KD alone on two
Table 3 | MoCo-v2 with curricula of alpha | nearfar study curricula | not reproduced | 5,000 images, 3 to 15 epochs, 2 seeds: from -0.9 to +0.7 points of CPC, every interval holds zero (docs/results/images.md); (b) is of CIFAR-100, which is not here
Table 4 | ImageNet, 30 epochs | - | not possible here | no ImageNet, no GPU
Fig. 1 | two coins over alpha | nearfar study binary | reproduced | closed form, no spread: exact to 1e-6 at n = m = 3
Fig. 2 | bias and variance over m | nearfar study binary | reproduced | closed form, no spread, n = m from 2 to 128, negatives of the batch: bias 0.42 to 0.0003 times CPC's; variance 1.8 to 3.9 times, which the paper calls slightly higher without a number
Fig. 3 | Gaussians of 20 dimensions | nearfar study gaussians arms=separable | reproduced | joint: within 0.02 nats of the paper at three alphas, one seed (docs/results/bounds.md). Separable, all steps, one seed: CPC 4.73 of 10 nats, ML-CPC 0.01 7.02 ± 0.29, 0.0001 7.23, alpha-CPC 0.0001 13.1 > 10 (docs/results/studies.md). All ten joint arms, 6 hours, not run
Fig. 4 | distillation over alpha | nearfar study distillation alphas=0.01,0.05,0.1,0.2,0.5,1 | not reproduced | resnet20 to resnet8, CIFAR-10, 2,000 images of 12 px, 5 epochs, 3 seeds: all six alphas of L and of J reach 37.4 to 37.7 % where the student alone has 37.9, and with KD 38.1 to 38.4 where KD alone has 38.8; spread 0.8 to 1.2 (docs/results/distillation.md)
Sec. 2.2 | m that 1,000 dimensions need | tests/bounds/test_bounds_enumerated.py::test_a_thousand_weakly_correlated_dimensions_need_many_negatives | tested | erratum: `20.411` nats and 7.3e8 negatives, printed 20.5 and 4e8
App. C.2 | settings of Fig. 3 | tests/studies/test_studies_gaussians.py::test_critics_are_those_of_the_appendix | tested | `256` units in two layers, 32 outputs, Adam at 1e-3, batch 128; erratum: I = -(d/2) log(1 - rho^2), printed with rho^2/2
App. C.3 | settings of distillation | tests/recipes/test_recipes_presets.py::test_song2020_distils_as_its_appendix_says | tested | `240` epochs, rate 0.1 over ten at 150, 180, 210, momentum 0.9, decay 5e-4, 16,384 negatives, temperature 0.07
App. C.4 | settings of Table 3 | tests/recipes/test_recipes_presets.py::test_song2020_trains_moco_as_its_appendix_says | tested | rate `0.3`, batch 256, temperature 0.07
"""
