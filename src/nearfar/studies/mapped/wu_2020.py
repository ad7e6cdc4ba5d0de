"""Wu et al. 2020, number by number."""

CITED = "Wu et al. 2020"
ABOUT = "views and VINCE"
ROWS = r"""
Eq. 1 | mutual information | tests/estimate/test_estimate_info.py::test_mutual_information_is_uncertainty_removed | tested | `mutual_information`
Eq. 2 | InfoNCE | tests/bounds/test_bounds_laws.py::test_value_and_gradient_equal_the_reference | tested | `infonce`
Eq. 3 | VINCE with importance weights | tests/bounds/test_bounds_enumerated.py::test_vince_with_density_ratios_never_exceeds_the_information | tested | true and vacuous: `Eq. 3` is at most log K - K + 1
Eq. 4 | VINCE as an objective | tests/bounds/test_bounds_laws.py::test_value_and_gradient_equal_the_reference | tested | `vince`; an objective, no estimate
Eq. 5 | VINCE of views | tests/selections/test_selections_matrix.py::test_value_and_gradient_equal_a_slow_reference | tested | `ball` over a `bank`, by loops
Eq. 6 | instance discrimination | tests/core/test_core_method.py::test_instance_discrimination_equals_the_non_parametric_softmax | tested | `e^(z.M[i]/t)` over its sum
Eq. 7 | the bank's update | tests/negatives/test_negatives_laws.py::test_bank_rows_move_as_written | tested | `m M[i] + (1 - m) z_i`
Eq. 8 | Local Aggregation | tests/selections/test_selections_clusters.py::test_local_aggregation_is_the_log_of_two_sums | tested | `p(C_i and B_i) / p(B_i)`
Eq. 9-11 | the bank as a sum of past views | tests/negatives/test_negatives_laws.py::test_a_bank_row_is_a_weighted_sum_of_past_views | tested | `Eq. 9-11` over up to six updates; Eq. 9 leaves the factor 1 - m and the normalisation of each update out
Eq. 12-13 | Barber-Agakov, normalised and not | tests/bounds/test_bounds_enumerated.py::test_barber_agakov_of_any_normalised_q_is_at_most_the_information | tested | `Eq. 12-13`; `UBA` from samples is not covered (docs/certificates.md)
Eq. 14 | NWJ | tests/bounds/test_bounds_enumerated.py::test_nwj_is_the_unnormalised_bound_with_a_constant_in_place_of_z | tested | `Eq. 14`; the part `NWJ` by its reference in tests/bounds/test_bounds_laws.py
Eq. 15-16 | InfoNCE derived from them | docs/certificates.md | proved | "InfoNCE"
Eq. 17 | VINCE+ with a learned acceptance | tests/bounds/test_bounds_enumerated.py::test_vince_plus_exceeds_the_information | tested | false as a bound: `Eq. 17` gives 3.47 > log 2. `Accept` leaves its weights out, as Eq. 4 does; `Proposal` has the right ones
Thm 3.1 | VINCE bounds information | tests/bounds/test_bounds_enumerated.py::test_vince_with_density_ratios_never_exceeds_the_information | tested | `Thm 3.1` is true and vacuous, see Eq. 3; without -K + 1 it is InfoNCE (test_importance_weighted_infonce_is_infonce in the same file)
Thm 5.1 | instance discrimination is InfoNCE | tests/core/test_core_method.py::test_instance_discrimination_equals_the_non_parametric_softmax | tested | `with all rows as negatives`
Thm 5.4 | Local Aggregation with C_i = {i} | tests/selections/test_selections_clusters.py::test_local_aggregation_without_close_instances_is_a_ball | tested | `Thm 5.4`: the reduction to BALL on which its proof rests. As printed the value is at most 0, so the inequality is true and vacuous (see Cor. 5.4.1); with log m a ball of draws from p(v) keeps the bound (docs/certificates.md), a bank is not covered
Thm A.3 | InfoNCE is a lower bound | docs/certificates.md | proved | "InfoNCE"
Cor. 3.1.1 | VINCE by rejection, weights 1/r | tests/bounds/test_bounds_enumerated.py::test_weights_of_one_over_r_exceed_the_information | tested | erratum: `Cor. 3.1.1` is false, 2.466 > log 2: rejection sampling draws from r p normalised
Cor. 3.1.2 | VINCE with a family that can be scored | tests/bounds/test_bounds_enumerated.py::test_vince_with_the_least_ratio_never_exceeds_the_information | tested | `Cor. 3.1.2` is true and vacuous
Cor. 5.3.1 | ball and annulus are VINCE | tests/selections/test_selections_matrix.py::test_value_and_gradient_equal_a_slow_reference | tested | `ball`, `annulus`: InfoNCE's number of those that were kept
Cor. 5.4.1 | any C_i bounds information | tests/bounds/test_bounds_enumerated.py::test_local_aggregation_as_printed_is_at_most_zero | tested | `Cor. 5.4.1` as printed is at most 0, true and vacuous; with log m it is false, log 4/3 > 0 = I (test_local_aggregation_with_log_m_exceeds_the_information in the same file)
Lemma A.1 | Barber-Agakov is a bound | tests/bounds/test_bounds_enumerated.py::test_barber_agakov_of_any_normalised_q_is_at_most_the_information | tested | `Lemma A.1`
Lemma A.2 | NWJ is a bound | tests/bounds/test_bounds_enumerated.py::test_nwj_is_the_unnormalised_bound_with_a_constant_in_place_of_z | tested | `Lemma A.2`
Lemma C.1 | the gradient of the acceptance | tests/bounds/test_bounds_enumerated.py::test_the_first_term_of_lemma_c1_lacks_a_gradient | tested | erratum: `Lemma C.1` leaves the gradient of r and the score function out of L1; without weights, the gradient of `Accept` equals that of the enumerated expectation (tests/selections/test_selections_accept.py)
Def. 5.2 | ball | tests/selections/test_selections_ring.py::test_ball_is_a_ring_without_an_outer_edge | tested | `Ball`
Def. 5.3 | annulus | tests/selections/test_selections_clusters.py::test_an_annulus_is_the_background_without_the_close | tested | `B_i \ C_i` written out, with the positive kept in the denominator, which the definition drops because i is in C_i; B_i is ranked for the anchor as it is seen now, the paper's for its row in the bank
Ex. 1-2 | thresholds on similarity | tests/selections/test_selections_ring.py::test_ring_keeps_the_places_of_the_definition | tested | `Ring`; erratum: a ball accepts what is above a threshold, printed below
Ex. 3-4 | proposals that can be scored | tests/bounds/test_bounds_enumerated.py::test_vince_with_the_least_ratio_never_exceeds_the_information | tested | any `proposal` with p's support; the uniform one is that of masked tokens (Sec. 5.1), and Ex. 4 normalised is p itself
Fig. 1 | two spirals under noise | nearfar study spirals | reproduced | 16 seeds: 0.534 ± 0.029 without noise (near chance), 0.701 ± 0.090 at 0.4 (0.70), 0.47 to 0.49 from noise 1 on (chance); with Adam, temperature 0.05 and biases from zero, which the paper does not have (docs/results/images.md)
Fig. 2 | IR, BALL, ANN, LA; lesions of views; the bank's momentum | nearfar study vince | not reproduced | (a) CIFAR-10, 3 seeds, one constant background for all arms: BALL above IR -0.5 (-1.3 to +0.2), LA above ANN -0.8 (-1.9 to +0.4) linear (docs/results/studies.md). (b) `nearfar study views`: crop +9.6 to +12 points linear as told, flip +4.7 to +9.5 where ImageNet's does nothing; 5,000 CIFAR-10 images do not refute that. (c) `nearfar study bank-momentum`: m = 0 is 2.1 ± 0.1 below m = 0.5, said to be as good
Sec. 4.2 | what a good view is | nearfar study infomin | not reproduced | "same domain" was not tested: two networks lift it (`cmc`, `clip`). Bottleneck and identifiability come out as an inverted U: linear 26.7 ± 1.2 at strength 0, 45.5 ± 0.3 at 0.5, 34.2 ± 0.6 at 3, 2 seeds
Sec. 5.1 | masked tokens as VINCE | tests/encoders/test_encoders_masked.py::test_the_dictionarys_loss_is_torchs_cross_entropy | tested | `log-softmax` over the vocabulary; as an estimate not covered (equal keys, docs/certificates.md, A). `nearfar study masked-tokens`, a chain of 16 symbols whose information is known: with frequencies of 1 / rank the objective is 2.01 nats where the truth is 1.61
Sec. 5.2 | Deep InfoMax and its local form | tests/encoders/test_encoders_per_view.py::test_dim_equals_global_and_local_terms_written_out | tested | `local` and global terms as in Liu 2022, Eq. 36-37: a code against features of other images. The section prints the other direction, a feature against codes of other images, which is not here
Sec. 5.3 | temperature plays a negligible role | nearfar study temperature | not reproduced | CIFAR-10, 2,500 images of 12 px, 10 epochs, 3 seeds: 0.07 is above 1 by +1.5 (+0.6 to +2.4) linear and +4.2 (+3.8 to +4.6) kNN points; the paper speaks of ImageNet
App. D | settings | tests/recipes/test_recipes_presets.py::test_wu2020_has_one_background_for_all | tested | `4096` nearest rows for BALL, ANN and LA alike
"""
