"""Every part in one line of mathematics, so that a method's equation is put together from its choices.

    climbed   the bound's line        f      the critic's
    u, v      the encoders'           v_k    the negatives', of which the selection's line says who counts

u is an anchor, v+ its positive, v_k its K candidates or, in the bound, those of them that count; x and x' are views of
one instance. Braces take the part's settings. A test asks that every part of every room has its line.
"""

from collections.abc import Mapping
from typing import Any

from nearfar.parts import plain

BOUNDS = {
    "infonce": "E[ f(u, v+) - log( (e^f(u, v+) + sum_k e^f(u, v_k)) / m ) ], m = 1 + number of v_k",
    "alpha-cpc": "E[ log( m e^f(u, v+) / (alpha e^f(u, v+) + b sum_k e^f(u, v_k)) ) ], b = (m - alpha) / (m - 1), alpha = {alpha}",
    "ml-cpc": "E_i[ log( nm e^f(u_i, v_i+) / (alpha sum_j e^f(u_j, v_j+) + b sum_jk e^f(u_j, v_jk)) ) ], b = (m - alpha) / (m - 1), alpha = {alpha}",
    "vince": "E[ f(u, v+) - log( (e^f(u, v+) + sum_k e^f(u, v_k)) / m ) ], v_k from any q(v | v+)",
    "barber-agakov": "E[ f(u, v+) ] + H(v), f the log of a normalised q(v | u), H(v) known or left out",
    "uba": "E[ f(u, v+) - log mean_k e^f(u, v_k) ]",
    "tuba": "E[ f(u, v+) ] - E[ e^f(u, v_k) ] / a - log a + 1, log a = {log_baseline}",
    "nwj": "E[ f(u, v+) ] - E[ e^(f(u, v_k) - 1) ]",
    "dv": "E[ f(u, v+) ] - log E[ e^f(u, v_k) ]",
    "smile": "E[ f(u, v+) ] - log E[ clip(e^f(u, v_k), e^-{clip}, e^{clip}) ]",
    "js": "E[ -sp(-f(u, v+)) ] - E[ sp(f(u, v_k)) ], sp(x) = log(1 + e^x)",
    "nce": "E[ log s(f(u, v+) - log nu) ] + nu E[ log s(log nu - f(u, v_k)) ], s(x) = 1 / (1 + e^-x), nu = number of v_k",
    "triplet": "-E[ max(0, f(u, v_k) - f(u, v+) + {margin}) ]",
    "tuple": "-E[ log(1 + sum_k e^(f(u, v_k) - f(u, v+))) ]",
    "npair": "-E[ log(1 + sum_k e^(f(u, v_k) - f(u, v+))) ]",
    "agreement": "E[ 2 f(u, v+) - 2 ] = -E[ |u - v+|^2 ] of unit vectors",
}
CRITICS = {
    "cosine": "cos(u, v) / {temperature}",
    "dot": "u^T v",
    "distance": "-|u - v|^2 / {temperature}",
    "bilinear": "u^T W v",
    "separable": "g(u)^T h(v)",
    "joint": "t([u, v])",
}
ENCODERS = {
    "shared": "u = h(x), v = h(x'): one network",
    "momentum": "u = h(x), v = h'(x'): h' follows h, weights w' <- c w' + (1 - c) w, c = {momentum}",
    "per-view": "u = h_1(x), v = h_2(x'): no weight shared",
    "infomax": "u = h(x), v = the feature map of x' whole ({global_weight} of the loss) and at every place ({local_weight}); "
    "u matched to a prior ({prior}, {prior_weight})",
    "predictive": "u = W_k c_t, v = z_(t+k), k = 1 to {steps}: z_t encodes frame t, c_t all frames up to it",
    "masked": "u = g(x)_t at a hidden place t, v = e(w_t), the symbol that stood there",
}
SOURCES = {
    "in-batch": "the other instances of the batch, views: {views}",
    "queue": "the last {size} keys",
    "bank": "the rows of all other instances; v+ is the instance's own, M_i <- c M_i + (1 - c) v, c = {momentum}",
    "dictionary": "every other symbol of the vocabulary, once",
    "none": "nobody",
}
RING = "places round(l K) to round(h K) - 1 in rising order of f(u, v_k), l = {lower}, h = {upper}"
SELECTIONS = {
    "everyone": "all K",
    "ball": "places round(l K) to K - 1 in rising order of f(u, v_k), l = {lower}",
    "ring": RING,
    "annulus": RING,
    "cave": "those in u's own of {clusters} k-means clusters",
    "neighbours": f"{RING}, of these the "
    "nearest ({background}), without C, who share a cluster with u in one of {runs} k-means runs after epoch {after}",
    "group": "those of u's own {by}",
    "accept": "each with a chance r(f(u, v_k)) in [{least}, 1] that is learned",
}
PULLED = "f(u, v+) becomes log( e^f(u, v+) + sum over C of e^f(u, v) )"
PULLED_AS_MEAN = "f(u, v+) becomes the mean of f over v+ and C"
GIVEN = object()  # whatever it is
# what one setting of a part adds to its line
REMARKS = (
    ("encoders", "predictor", "mlp", "u goes through a predictor"),
    ("encoders", "stop_gradient", True, "no gradient reaches v"),
    ("selection", "keep", "la", "{pulled}"),
    (
        "selection",
        "close",
        GIVEN,
        "without C, who share one of {close} clusters in one of {runs} runs too; {pulled}",
    ),
    ("bound", "semi_hard", True, "over v_k with f(u, v_k) < f(u, v+) alone"),
)
LINES = {
    "bound": BOUNDS,
    "critic": CRITICS,
    "encoders": ENCODERS,
    "negatives": SOURCES,
    "selection": SELECTIONS,
}
SYMBOLS = {
    "bound": "climbed",
    "critic": "f(u, v)",
    "encoders": "u, v",
    "negatives": "v_k",
    "selection": "who counts",
}


def equation_of(choices: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """A method's equation, line by line, by the symbol each line explains."""
    lines = {symbol: line_of(room, choices[room]) for room, symbol in SYMBOLS.items()}
    if choices["negatives"]["name"] == "none":
        del lines["v_k"], lines["who counts"]
    pulled = PULLED_AS_MEAN if "margin" in choices["bound"] else PULLED
    for room, key, value, remark in REMARKS:
        given = choices[room].get(key)
        if SYMBOLS[room] in lines and (given is not None if value is GIVEN else given == value):
            lines[SYMBOLS[room]] += f"; {remark.format(**choices[room], pulled=pulled)}"
    return lines


def line_of(room: str, choice: Mapping[str, Any]) -> str:
    """The line of one part with its settings put in."""
    settings = {key: "all" if value is None else plain(value) for key, value in choice.items()}
    return LINES[room][choice["name"]].format(**settings)
