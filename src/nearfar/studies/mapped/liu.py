"""Liu 2022, number by number."""

CITED = "Liu 2022"
ABOUT = "a note on noise-contrastive methods"
ROWS = r"""
Eq. 1, 4 | normalised models, maximum likelihood | tests/estimate/test_estimate_density.py::test_a_normalised_model_nears_maximum_likelihood_as_nu_grows | tested | mean and deviation of a model whose integral is one against those of maximum likelihood, the sample's own (`data.std`)
Eq. 2-3 | the partition, and the model divided by it | tests/estimate/test_estimate_density.py::test_the_partition_of_an_unnormalised_model_is_learned | tested | `log_integral`, and log p0 - log Z against scipy's normal
Eq. 5-8 | posterior of data against noise, and its cross-entropy | tests/estimate/test_estimate_density.py::test_loss_is_the_cross_entropy_of_the_posterior | tested | `posterior` by exponentials and sums
Eq. 9 | the log-partition as a parameter | tests/estimate/test_estimate_density.py::test_the_partition_of_an_unnormalised_model_is_learned | tested | `log Z` is found without an integral
Eq. 10 | the sample objective | tests/bounds/test_bounds_laws.py::test_value_and_gradient_equal_the_reference | tested | `binary_nce`, value and gradient
Eq. 11-12 | the sample objective converges to its expectation | tests/estimate/test_estimate_density.py::test_the_sample_objective_converges_to_its_expectation | tested | `Eq. 10-12`: the largest distance over six models from the integral, at 100 and 10,000 points
Eq. 13-21 | gradients of the likelihood and of the objective | tests/estimate/test_estimate_density.py::test_gradient_in_closed_form_by_quadrature | tested | `Eq. 15` and Eq. 20 on a fine grid; the others are steps towards them; Eq. 21 inserts ln p = ln p0 + c (erratum: printed ln(p0 + c))
Eq. 22-23 | c = 0, and as nu grows the gradient becomes maximum likelihood's | tests/estimate/test_estimate_density.py::test_gradient_approaches_maximum_likelihood_like_one_over_nu | tested | `Eq. 20-23`: a tenth of the distance for ten times nu. The estimate follows: `nearfar study nce-density`, 1,000 points, 5 repetitions, 0.063 from maximum likelihood at nu = 1, 0.010 at nu = 100 (docs/results/bounds.md)
Eq. 24 | mutual information of x and context | tests/estimate/test_estimate_info.py::test_mutual_information_is_uncertainty_removed | tested | `mutual_information`
Eq. 25, 28 | InfoNCE, the bilinear critic for k steps ahead | tests/encoders/test_encoders_sequence.py::test_the_value_is_liu_2022_eq_25_for_every_frame_step_and_kind_of_negative | tested | every frame and step by loops over `negatives`; the note has no experiment, ours on spoken digits is `nearfar study speech` (96.8 ± 0.2 %, docs/results/images.md)
Eq. 26-27 | its best critic, and the posterior of the positive | tests/bounds/test_bounds_enumerated.py::test_infonce_and_nce_are_highest_at_the_log_ratio | tested | `Eq. 26-27`, enumerated in 12 worlds: the slope is zero at the log ratio, also with anything added that depends on the context alone (the proportionality of Eq. 27), and not at another critic; the shares are the posterior by Bayes
Eq. 29 | I is at least ln N minus the loss | docs/certificates.md | proved | "InfoNCE" under "The step all proofs share"; a search by gradient finds no counter-example (tests/bounds/test_bounds_search.py)
Eq. 30-33 | the derivation of Eq. 29 | docs/certificates.md | proved | Eq. 31 needs N large and Eq. 32 a ratio above 1; the proof there needs neither
Eq. 34 | the contrastive loss, end to end and of MoCo | tests/encoders/test_encoders_per_view.py::test_end_to_end_contrast_trains_both_networks | tested | `Eq. 34`, gradient into query and key network; with a queue in tests/core/test_core_method.py
Eq. 35 | the slow copy of MoCo | tests/encoders/test_encoders_laws.py::test_momentum_follows_slowly_and_only_in_advance | tested | `theta' <- m theta' + (1 - m) theta`
Eq. 36-37 | Deep InfoMax, global and local | tests/encoders/test_encoders_per_view.py::test_dim_equals_global_and_local_terms_written_out | tested | `Eq. 37`, with the positive in the sum, which Eq. 36 leaves out
Eq. 38-39 | matching a prior | tests/priors/test_priors_laws.py::test_discriminator_and_encoder_have_opposite_gradients | tested | `Eq. 38`: the discriminator maximises, the encoder minimises. Eq. 39 adds an arg min to an arg max, which is no objective; ours adds the values, weighted
Fig. 1 | end-to-end framework | nearfar recipes end-to-end | not possible here | a drawing: nothing to compute
Fig. 2 | MoCo framework | nearfar recipes moco-v1 | not possible here | a drawing: nothing to compute
Fig. 3-5 | Deep InfoMax's encoder, objectives and prior | nearfar recipes dim | not possible here | drawings: nothing to compute
"""
