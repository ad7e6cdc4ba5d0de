"""Sáez Maldonado 2021, number by number."""

CITED = "Sáez Maldonado 2021"
ABOUT = "mutual information in self-supervised learning, a thesis"
ROWS = r"""
Eq. 1 | the normal density | tests/studies/test_studies_bias.py::test_critic_is_the_log_ratio_of_densities | tested | against scipy's `multivariate_normal`
Eq. 2-3 | conditioning lowers entropy | tests/estimate/test_estimate_info.py::test_mutual_information_is_uncertainty_removed | tested | `conditional_entropy` is at most `entropy`
Eq. 4 | forms of mutual information | tests/estimate/test_estimate_info.py::test_mutual_information_is_uncertainty_removed | tested | `Eq. 4`
Eq. 5-6 | Donsker-Varadhan, and the gap | tests/bounds/test_bounds_enumerated.py::test_donsker_varadhans_gap_is_a_divergence | tested | `Eq. 5-6`
Eq. 7 | likelihood of logistic regression | tests/evaluate/test_evaluate_linear.py::test_digits_equal_sklearn | tested | for ten classes and with a penalty, of which Eq. 7 is the case of two classes without one: the probe reaches `sklearn`'s optimum
Eq. 8-11 | NCE by logistic regression | tests/estimate/test_estimate_density.py::test_loss_is_the_cross_entropy_of_the_posterior | tested | `posterior` by exponentials and sums of given G: minus Eq. 11 over T_d, at nu = T_n / T_d; G as Eq. 8 has it enters in test_gradient_in_closed_form_by_quadrature of the same file
Eq. 12 | information with a context | tests/estimate/test_estimate_info.py::test_mutual_information_is_uncertainty_removed | tested | `mutual_information`
Eq. 13, 15 | InfoNCE | tests/bounds/test_bounds_laws.py::test_value_and_gradient_equal_the_reference | tested | `infonce`
Eq. 14 | its best critic | tests/bounds/test_bounds_enumerated.py::test_infonce_and_nce_are_highest_at_the_log_ratio | tested | `Eq. 14`, enumerated
Eq. 16 | its bound | docs/certificates.md | proved | "InfoNCE"
Eq. 17-18 | triplet loss | tests/bounds/test_bounds_laws.py::test_value_and_gradient_equal_the_reference | tested | `triplet` of scores that are minus squared distances (tests/critics/test_critics_laws.py); ours is the mean over positives of the mean over their negatives, Eq. 18 the sum over triplets
Eq. 19 | (N+1)-tuple loss | tests/bounds/test_bounds_laws.py::test_value_and_gradient_equal_the_reference | tested | `tuple`
Eq. 20 | N-pair-mc loss | tests/bounds/test_bounds_laws.py::test_value_and_gradient_equal_the_reference | tested | `npair`
Eq. 21-22 | N-pair-mc is InfoNCE | tests/bounds/test_bounds_truth.py::test_npair_is_infonce_without_log_m | tested | `Eq. 22`
Eq. 23 | NT-Xent of a pair | tests/bounds/test_bounds_laws.py::test_ntxent_equals_lightly | tested | `Eq. 23-24`
Eq. 24 | NT-Xent of a batch | tests/bounds/test_bounds_laws.py::test_ntxent_equals_lightly | tested | erratum: `Eq. 23-24` over both orders, divided by 2N; printed to 2N with index 2k
Eq. 25 | BYOL's loss | tests/core/test_core_method.py::test_byol_loss_equals_the_squared_distance_of_unit_vectors | tested | `Eq. 25` is the sum of both directions; the recipe has their mean, half of it, and the presets `grill2020` and `saez2021` their sum (tests/recipes/test_recipes_presets.py). Erratum: only the online network has a predictor
Thm 2.1.1 | Bayes | tests/bounds/test_bounds_enumerated.py::test_posterior_is_likelihood_times_prior_over_evidence | tested | erratum: `P(A given B) P(B) / P(A)`, printed P(A given B) P(A) / P(B)
Thm 3.2.1 | Donsker-Varadhan | tests/bounds/test_bounds_enumerated.py::test_donsker_varadhans_gap_is_a_divergence | tested | `Thm 3.2.1`; erratum: tight where G = P, printed P = Q; from a sample not covered (docs/certificates.md)
Thm 4.1 | NCE has one maximum, at the data | tests/bounds/test_bounds_enumerated.py::test_infonce_and_nce_are_highest_at_the_log_ratio | tested | `Thm 4.1`, enumerated for ratios of joint and product; and `nearfar study nce-density`
Cor. 1 | information is not negative, and 0 for independence alone | tests/estimate/test_estimate_info.py::test_mutual_information_is_zero_only_under_independence | tested | `Cor. 1`
Cor. 2 | Donsker-Varadhan over a class of functions | tests/bounds/test_bounds_enumerated.py::test_donsker_varadhans_gap_is_a_divergence | tested | `Cor. 2`
Prop. 1 | KL is not negative | tests/estimate/test_estimate_info.py::test_kl_is_zero_only_between_equals_and_completes_cross_entropy | tested | `kl`
Prop. 2 | entropy is between 0 and the log of the number of values | tests/estimate/test_estimate_info.py::test_entropy_lies_between_zero_and_log_n | tested | `Prop. 2`
Prop. 3 | conditional entropy | tests/estimate/test_estimate_info.py::test_conditional_entropy_is_the_mean_over_the_condition | tested | `conditional_entropy`; erratum: its cases of equality are swapped
Prop. 4 | invariance under homeomorphism | tests/estimate/test_estimate_mi.py::test_monotone_maps_change_nothing_and_a_seed_reproduces | tested | `monotone`
Prop. 5 | Barber-Agakov | tests/bounds/test_bounds_enumerated.py::test_barber_agakov_of_any_normalised_q_is_at_most_the_information | tested | `Prop. 5`; erratum: the inner mean is over P(z given x)
Prop. 6 | the posterior of NCE | tests/estimate/test_estimate_density.py::test_loss_is_the_cross_entropy_of_the_posterior | tested | `posterior`
Prop. 7 | InfoNCE is a lower bound | docs/certificates.md | proved | "InfoNCE"
Prop. 8 | the best views share least | nearfar study infomin | not reproduced | 2 seeds: linear is highest where views share at least 5.2 and 2.5 nats (45.5 ± 0.3, 45.4 ± 0.4), 34.2 ± 0.6 at 0.01. Views that keep all of the label were not seen there: at least 0.65 of at least 0.79 nats, and 0.53 of 0.80. Both are lower bounds through the trained encoder, so this is an indication, no refutation; encoders that are minimal and sufficient were not available (docs/results/images.md)
Prop. 9 | Jensen | tests/bounds/test_bounds_enumerated.py::test_a_concave_function_of_a_mean_is_at_least_the_mean_of_its_values | tested | `Prop. 9` for the logarithm, the square root and minus the square; equal where all values are
Def. 5.1 | the InfoMin principle | nearfar study infomin | reproduced | read as an inverted U, which the thesis does not draw: 5,000 images, 10 epochs, 2 seeds, linear 26.7 ± 1.2 at the ceiling, 45.5 ± 0.3 and 45.4 ± 0.4 where views share at least 5.2 and 2.5 nats, 34.2 ± 0.6 at at least 0.01; that views keep all the task needs was not seen (Prop. 8)
Ex. 1-3 | illustrations | - | not possible here | no claim that could be checked; the drawing of Ex. 2 is Fig. 2
Ex. 4 | a 3 x 3 Gaussian kernel | tests/views/test_views_render.py::test_three_taps_of_the_blur_are_the_kernel_of_the_thesis | tested | `(1, 2, 1)` times itself over 16 is exactly the kernel of sigma = (2 ln 2)^(-1/2)
Ex. 5 | entropy of a coin | tests/estimate/test_estimate_info.py::test_values_are_scipys | tested | `entropy`
Ex. 6-7 | illustrations | - | not possible here | no claim that could be checked; the drawing of Ex. 7 is Fig. 17
Alg. 1 | SimCLR | tests/core/test_core_method.py::test_simclr_loss_equals_lightly | tested | the whole method against a peer's `loss`
Table 1 | ResNet-18 | tests/encoders/test_encoders_laws.py::test_resnets_have_the_weights_of_the_thesis | tested | erratum: `11_689_512` weights, printed 11,400,000
Table 2 | SimCLR and BYOL on ImageNet | - | not possible here | no ImageNet; quoted by the thesis from the papers
Table 3-4 | batch x temperature x jitter, ResNet-18 | nearfar study thesis-simclr tables=3 | not reproduced | the batch: 1,024 is below 512 by 0.6 (0.1 to 1.1) points, since steps are fewer; 0.6 above there. The temperature agrees with the paper: 2,500 images of 12 px, 4 epochs, 2 seeds, T 0.25 above 1 by 1.2 (0.5 to 2.0), 3.9 there. Jitter +0.1 (-0.4 to +0.5)
Table 5 | ResNet-50 | tests/encoders/test_encoders_laws.py::test_resnets_have_the_weights_of_the_thesis | tested | `23_520_842` weights, as printed, with 3 x 3 kernels and stride 1 in the first layer
Table 6-7 | the deeper network | nearfar study thesis-simclr tables=6,8 | not reproduced | a deeper network was not trained. A wider one is better by 1.7 (0.8 to 2.5) points, 4 epochs, 2 seeds, on the four pairs of Table 8 that differ in the network alone; the thesis' deeper one by 3.4 on the three that it prints, 0.7 between the best of Table 7; slipped rows are placed by their steps
Table 8-10 | blur | nearfar study thesis-simclr tables=8 | not reproduced | -0.1 (-0.9 to +0.7) points, 2 seeds, where the thesis has +0.3; slipped rows are placed by their steps
Table 11 | the best of all | nearfar study thesis-simclr tables=all | not reproduced | best of our 69 cells: 36.4 %, 4 epochs, 2 seeds; 86.2 is the highest of some sixty models on the test set, an optimistic figure
Table 12-13 | BYOL over the batch | nearfar study thesis-byol | not reproduced | its figures are multiples of one over the batch: accuracies of single batches. Ours, 4 epochs, 2 seeds: BYOL loses 5.1 ± 1.5 points from its best to its worst batch, SimCLR 1.8 ± 0.2, against the thesis' claim. On the thesis' Imagenette at 24 px, 2,500 images, 10 epochs, 2 seeds: 29.7 to 34.6 % over batches, and less sensitive than SimCLR in one seed of two (docs/results/studies.md)
Table 14-16 | BYOL with the deeper network | nearfar study thesis-byol | not reproduced | a deeper network was not trained; a wider one is better by 2.4 (1.6 to 3.3) points on CIFAR-10, 4 epochs, 2 seeds, and at all four batches on the thesis' Imagenette at 24 px, 10 epochs, 2 seeds (docs/results/studies.md). The figures themselves, up to 100 %, are of single batches
Table 17-19 | plans and costs of the thesis | - | not possible here | hours and money, no result
Fig. 1 | entropies as a Venn diagram | tests/estimate/test_estimate_info.py::test_chain_rule | tested | the `chain` rule
Fig. 2-9 | distributions, activations, networks | - | not possible here | drawings: nothing to compute
Fig. 10 | rotation and flip | tests/views/test_views_operations.py::test_rotation_is_bilinear_about_the_centre | tested | `Rotate`; the flip, with all other operations, against torchvision in tests/views/test_views_render.py
Fig. 11 | random crop | tests/views/test_views_parameters.py::test_crops_follow_torchvisions_law | tested | `RandomResizedCrop`: the law of its boxes, which the thesis leaves open; crop and resize against torchvision are in tests/views/test_views_render.py
Fig. 12 | histogram before and after a crop | nearfar report RUN | not possible here | the histogram of one picture of the thesis, which is not here; the report has its own pictures' before and after views
Fig. 13 | colour jitter | tests/views/test_views_operations.py::test_strength_is_simclrs | tested | `strength`
Fig. 14 | histogram before and after jitter | nearfar report RUN | not possible here | as Figure 12
Fig. 15 | entropy of a coin | tests/estimate/test_estimate_info.py::test_values_are_scipys | tested | `entropy`
Fig. 16 | CPC's framework | nearfar recipes cpc | not possible here | a drawing: nothing to compute
Fig. 17 | anchor, positive, negative | - | not possible here | a drawing: nothing to compute
Fig. 18 | SimCLR's framework | nearfar recipes simclr | not possible here | a drawing: nothing to compute
Fig. 19 | SimCLR's algorithm | tests/core/test_core_method.py::test_simclr_loss_equals_lightly | tested | as Algorithm 1: a peer's `loss`
Fig. 20 | BYOL's framework | nearfar recipes byol | not possible here | a drawing: nothing to compute
Fig. 21-22 | CIFAR-10's classes, a logo | - | not possible here | pictures; erratum: the thesis says 10,000 images a class, there are 6,000
Fig. 23 | the batch | nearfar study thesis-simclr tables=23a | not reproduced | with equal epochs the largest batch has the fewest steps: batch 1,024 cannot be told from 16, 2 seeds
Fig. 24-25 | jitter and temperature | nearfar study thesis-simclr tables=3 | reproduced | as Table 3, 2 seeds: the temperature matters, T 0.25 above 1 by 1.2 (0.5 to 2.0) points, and jitter hardly, +0.1 (-0.4 to +0.5), as told
Fig. 26-29 | losses while training | tests/train/test_train_online.py::test_the_online_head_reports_the_thesis_curves | tested | the hook `OnlineHead` logs contrastive, `supervised` and total loss, top-1 and top-5, and leaves the run's weights as they are; the drawn curves themselves were not compared
Fig. 30-34 | BYOL's losses | tests/train/test_train_online.py::test_the_online_head_reports_the_thesis_curves | tested | the same quantities of `byol`; the drawn curves were not compared
Sec. 7.2 | SimCLR v2: pretrain, fine-tune, distil; the findings of SimCLR | tests/simclrv2/test_simclrv2.py::test_a_cut_head_is_the_first_layers_of_the_full_head | tested | the three stages run as `nearfar semi`; the test holds fine-tuning from the `head`'s first layer, which the thesis does not have (Chen, Kornblith et al. 2020, sec. 2). The findings on batch, temperature, jitter and depth are Tables 3 to 11
Sec. 10.1.4 | transfer to other image sizes | tests/evaluate/test_evaluate_protocols.py::test_other_channels_sizes_and_classes_are_evaluated | tested | the thesis stopped at a bug of the SimCLR code it used, which its author reported; here pictures of another `size` are evaluated
Sec. 10.2.1 | BYOL's fixed augmentations | tests/recipes/test_recipes_presets.py::test_byol_views_are_the_thesis_ones | tested | jitter 0.8, greyscale 0.2, blur always, `solarise` 0.2 of the second view alone
"""
