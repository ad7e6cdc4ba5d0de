"""Liu 2022, number by number."""

CITED = "Liu 2022"
ABOUT = "a note on noise-contrastive methods"
ROWS = r"""
Eq. 1-4 | normalised and unnormalised models, maximum likelihood | pytest tests/estimate/test_estimate_density.py | tested | models whose integral is known are compared with their likelihood
Eq. 5-8 | posterior of data against noise, and its cross-entropy | pytest tests/estimate/test_estimate_density.py | tested | by exponentials and sums
Eq. 9 | the log-partition as a parameter | nearfar study nce-density | reproduced | log Z is found without an integral, for a Gaussian and for ICA
Eq. 10 | the sample objective | pytest tests/bounds/test_bounds_laws.py | tested | `BinaryNCE`, value and gradient
Eq. 11 | it converges to its expectation | pytest tests/estimate/test_estimate_density.py | tested | with even quantiles in place of samples the means are the integrals
Eq. 12 | the expected objective | pytest tests/bounds/test_bounds_truth.py | tested | any change of the critic lowers it
Eq. 13-15 | the gradient of the likelihood | - | no claim | steps towards Eq. 20
Eq. 16-20 | the gradient of the objective | pytest tests/estimate/test_estimate_density.py | tested | Eq. 20 on a fine grid
Eq. 21 | the model with its constant | pytest tests/estimate/test_estimate_density.py | corrected | printed ln(p0 + c), is ln p0 + c
Eq. 22-23 | as nu grows the gradient becomes maximum likelihood's | nearfar study nce-density | reproduced | the error falls with nu
Eq. 24 | mutual information of x and context | pytest tests/estimate/test_estimate_info.py | tested | `nf.info.mutual_information`
Eq. 25-28 | InfoNCE, its best critic, the bilinear one for k steps ahead | nearfar study speech | in small | loss against loops in tests/encoders/test_encoders_sequence.py; spoken digits 96.8 %
Eq. 29 | I is at least ln N minus the loss | pytest tests/bounds/test_bounds_search.py | tested | gradient ascent finds no counter-example under the stated sampling
Eq. 30-33 | the derivation of Eq. 29 | - | no claim | Eq. 31 needs N large and Eq. 32 a ratio above 1; Eq. 29 holds without either, by the proof in docs/certificates.md
Eq. 34 | end-to-end contrast | nearfar pretrain end-to-end DATA --out RUN | tested | gradient into query and key network in tests/encoders/test_encoders_per_view.py
Eq. 35 | the slow copy of MoCo | nearfar pretrain moco-v1 DATA --out RUN | tested | tests/core/test_core_method.py
Eq. 36-37 | Deep InfoMax, global and local | nearfar pretrain dim DATA --out RUN | tested | with the positive in the sum, which Eq. 36 leaves out
Eq. 38-39 | matching a prior | nearfar pretrain dim DATA --out RUN prior=adversarial | corrected | adversarial: the discriminator maximises and the encoder minimises; printed with one sign
Fig. 1 | end-to-end framework | nearfar recipes end-to-end | no claim | a drawing
Fig. 2 | MoCo framework | nearfar recipes moco-v1 | no claim | a drawing
Fig. 3-5 | Deep InfoMax's encoder, objectives and prior | nearfar recipes dim | no claim | drawings
"""
