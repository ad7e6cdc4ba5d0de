"""Wu et al. 2020, number by number."""

CITED = "Wu et al. 2020"
ABOUT = "views and VINCE"
ROWS = r"""
Eq. 1 | mutual information | pytest tests/estimate/test_estimate_info.py | tested | -
Eq. 2 | InfoNCE | pytest tests/bounds/test_bounds_laws.py | tested | -
Eq. 3 | VINCE with importance weights | - | refuted here | the term -K + 1 makes the value vacuous for large K, and q = r p is not normalised: `nf.Vince` is an objective only
Eq. 4 | VINCE as an objective | pytest tests/bounds/test_bounds_laws.py | tested | `nf.Vince`
Eq. 5 | VINCE of views | nearfar pretrain instdisc-ball DATA --out RUN | tested | tests/selections/test_selections_matrix.py
Eq. 6 | instance discrimination | nearfar pretrain instdisc DATA --out RUN | tested | tests/core/test_core_method.py
Eq. 7 | the bank's update | nearfar study bank-momentum | in small | -
Eq. 8 | Local Aggregation | nearfar pretrain la DATA --out RUN | tested | tests/selections/test_selections_clusters.py
Eq. 9-11 | the bank as a sum of past views | - | no claim | rewrites Eq. 7
Eq. 12 | Barber-Agakov | pytest tests/bounds/test_bounds_laws.py | tested | `nf.BarberAgakov`
Eq. 13 | its unnormalised form | pytest tests/bounds/test_bounds_laws.py | tested | `nf.UBA`
Eq. 14 | NWJ | pytest tests/bounds/test_bounds_laws.py | tested | `nf.NWJ`
Eq. 15-16 | InfoNCE derived from them | pytest tests/bounds/test_bounds_search.py | tested | by what follows from it
Eq. 17 | VINCE+ with a learned acceptance | nearfar pretrain instdisc DATA --out RUN selection=accept | tested | tests/selections/test_selections_accept.py
Thm 3.1 | VINCE bounds information | - | refuted here | as an objective it stands; as a value see Eq. 3
Thm 5.1 | instance discrimination is InfoNCE | pytest tests/core/test_core_method.py | tested | -
Thm 5.4 | Local Aggregation with C_i = {i} | pytest tests/selections/test_selections_clusters.py | tested | it is the ball's objective
Thm A.3 | InfoNCE is a lower bound | pytest tests/bounds/test_bounds_search.py | tested | -
Cor. 3.1.1, 3.1.2 | VINCE by rejection, and with a family that can be scored | - | refuted here | values as in Eq. 3
Cor. 5.3.1 | ball and annulus are VINCE | pytest tests/selections/test_selections_matrix.py | tested | -
Cor. 5.4.1 | any C_i bounds information | pytest tests/bounds/test_bounds_certificates.py | refuted here | close neighbours join the positive: `Neighbours` takes "proven" away
Lemma A.1, A.2 | Barber-Agakov and NWJ are bounds | pytest tests/bounds/test_bounds_search.py | tested | under the conditions of docs/certificates.md
Lemma C.1 | the gradient of the acceptance | pytest tests/selections/test_selections_accept.py | tested | against the enumerated expectation; credited to each anchor's own draw
Def. 5.2 | ball | nearfar pretrain instdisc-ball DATA --out RUN | tested | tests/selections/test_selections_ring.py
Def. 5.3 | annulus | nearfar pretrain instdisc-annulus DATA --out RUN | tested | tests/selections/test_selections_ring.py
Ex. 1-2 | thresholds on similarity | pytest tests/selections/test_selections_ring.py | corrected | a ball accepts what is above a threshold, an annulus what is between two; printed the other way
Ex. 3-4 | proposals that can be scored | - | no claim | -
Fig. 1 | two spirals under noise | nearfar study spirals | reproduced | near chance without noise, 0.70 at noise 0.4 over 16 seeds
Fig. 2 | IR, BALL, ANN, LA; lesions of views; the bank's momentum | nearfar study views | refuted here | (b) flip alone helps by 6 to 15 points on CIFAR-10, "does not improve" on ImageNet; (a) `nearfar study vince`: nothing can be told apart with two seeds, and LA is lowest; (c) `nearfar study bank-momentum` in small
"""
