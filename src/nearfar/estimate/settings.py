"""Every number of the estimators, with its kind.

    Numerical    keeps arithmetic finite, or is the precision of a computation or follows from a proof
    Resource     limits time or memory
    Judgement    chosen by hand from experience; no command sets it
    Calibrated   set by a command, which the comment names

Coefficients and factors of the interval are calibrated too: calibration.json, whose `command` sets them. What stays in
the formulas are constants of mathematics and of a definition (a quantile of 10 %, half of the rows).
"""

from typing import Annotated, TypeVar

Number = TypeVar("Number")
Numerical = Annotated[Number, "numerical"]
Resource = Annotated[Number, "resource"]
Judgement = Annotated[Number, "judgement"]
Calibrated = Annotated[Number, "calibrated"]


# reading columns (columns, samples, rows)
TINY: Numerical[float] = 1e-12  # added where a density or a deviation may be zero
# of the cells: from this share on a column is numeric and other cells are mistakes
MIN_NUMERIC_SHARE: Judgement[float] = 0.5
MAX_EXACT: Numerical[float] = 2.0**53  # float64 holds every whole number up to here
MIN_SAMPLES: Judgement[int] = 50  # with fewer a fold has too little to learn from
MAX_CORRELATION: Numerical[float] = 0.9995  # of a canonical pair of ranks
MAX_NUMERIC_LEVELS: Judgement[int] = 32  # a numeric column with more distinct values is continuous
MAX_COPIES: Judgement[float] = 0.01  # share of rows that may be copies of others,
COPIES_OVER_CHANCE: Judgement[float] = 30.0  # unless they are this many times what independent ties give
DISTINCT_SHARE: Judgement[float] = 0.25  # a side with at least this share of distinct rows rarely repeats
# distinct joint rows per distinct row of the finer side; recurring levels give more
SAME_ROWS: Judgement[float] = 1.1
# of the mean gap nearby: this share of the gaps of independent draws is smaller,
CLOSE: Judgement[float] = 0.02
MAX_CLOSE: Judgement[float] = 0.05  # and at most this share of rows
MIN_CLOSE: Judgement[int] = 8  # fewer close rows prove nothing
# share of rows that must lie apart: there are few copies of a row, but many rows of a level
MIN_APART: Judgement[float] = 0.2
NEARBY_GAPS: Judgement[int] = 20  # on either side
MAX_LAGS: Resource[int] = 60  # rows
MIN_AUTOCORRELATION: Judgement[float] = 0.1  # a weaker autocorrelation moves no estimate much
FALSE_ALARM: Judgement[float] = 1e-5  # probability that independent rows look ordered, over all columns
MIN_GROUPS: Judgement[int] = 20  # of dependent rows

# folds (rows, crossfit)
MAX_BLOCK: Resource[int] = 2048  # rows contrasted with one another at a time: 16 MB of scores
MAX_LEARNED: Resource[int] = 100_000  # rows: the error of a ratio falls like one over them
GROUP_DRAWS: Resource[int] = 8  # draws of one row per group, over which a fold is averaged
SPLIT_SEED_STEP: Numerical[int] = 1009  # between the seeds of splits
FOLD_BLOCK: Resource[int] = 512  # rows contrasted with one another: a ceiling of log 512 = 6.2 nats,
LARGE_FOLD_BLOCK: Resource[int] = 2048  # and more where training rows come near it
MAX_FOLD_BLOCKS: Resource[int] = 8  # per fold,
HALF_FIT_BLOCKS: Resource[int] = 2  # and for the stack fitted to half of the rows
SMALL_BLOCK: Judgement[float] = 0.6  # share of its ceiling from which a block is too small
SCORED_CHUNK: Resource[int] = 10_000  # rows scored at a time
# variance of a mean over folds under independence, relative to independent folds
FOLD_VARIANCE: Numerical[float] = 2.0
# standard errors above zero from which x and y are clearly dependent
CLEARLY_DEPENDENT: Judgement[float] = 5.0
MIN_NORMALISER_SAMPLES: Judgement[float] = 10.0  # effective anchors and keys that must carry the mean of r
# first and last edge of bins of log ratios, and their number
CALIBRATION_RANGE: Numerical[tuple[float, float, int]] = (-5.0, 8.0, 27)
MIN_BIN_COUNT: Judgement[int] = 20  # rows of a bin

# the stack of ratios (ratios/stack, ratios/candidates)
MIN_WEIGHT: Resource[float] = 0.02  # a ratio with less is left out
TEMPER: Judgement[float] = 0.25  # initial weights: likelihood to this power,
UNIFORM_START: Judgement[float] = 0.2  # mixed with uniform ones
WEIGHT_STEPS: Numerical[int] = 300  # of expectation maximisation
WEIGHT_TOLERANCE: Numerical[float] = 1e-4
MAX_LOG_RATIO: Numerical[float] = 50.0  # nats of one pair
MAX_SHUFFLED_PAIRS: Resource[int] = 3000  # pairs of y shifted against x that show a ratio's mean
MAX_SHIFTS: Resource[int] = 3
MAX_COMPARED: Resource[int] = 4000  # rows of either half on which ratios compete
HOPELESS_ERRORS: Resource[float] = 4.0  # standard errors behind the best candidate from which one is given up

# sides and their transforms (ratios/sides, ratios/transforms)
# distance from the median beyond which tails are squeezed, in interdecile ranges
TAIL_START: Judgement[float] = 2.0
MAX_TAIL: Numerical[float] = 1e6
FAR: Judgement[float] = 20.0  # interdecile ranges: with outliers beyond, only ranks are used
CROWDED: Judgement[float] = 1 / 3  # combinations of categories per row from which they rarely recur
MAX_INDICATORS: Resource[int] = 64  # levels beyond which a category is not expanded into indicator columns
RIDGE: Calibrated[float] = 10.0  # mean variances; kept of 0.1 and 10 by benchmarks/ablation.py
MIN_RIDGE_COLUMNS: Judgement[int] = 5  # with fewer, a Gaussian of all columns exists for the smallest sample
MAX_RIDGE_DIRECTIONS: Resource[int] = 20  # as many as a Gaussian of every level takes
ROWS_PER_DIRECTION: Judgement[int] = 5
MIN_DIRECTION_ERRORS: Judgement[float] = 3.0  # by which a correlation on unseen rows must exceed zero
MAX_COMPONENT_COLUMNS: Resource[int] = 30
ROWS_PER_INDEPENDENT_COMPONENT: Judgement[int] = 30  # so that directions are known well enough
MAX_ICA_ROWS: Resource[int] = 10_000
ICA_STEPS: Numerical[int] = 60
ICA_TOLERANCE: Numerical[float] = 1e-4
MAX_SCORED_COLUMNS: Resource[int] = 12  # of both sides
PRIOR_ROWS: Judgement[float] = 3.0  # weight of the mean of all levels in a level's score

# blocks of columns (ratios/blocks)
# expected number among independent columns, of single columns and of products on either side
FALSE_LINKS: Judgement[float] = 0.1
WAVES: Judgement[int] = 4  # functions of a number's rank that are correlated with those of the other side
MAX_LINKED_LEVELS: Resource[int] = 8  # most frequent levels that are correlated,
MIN_LINKED_LEVEL_ROWS: Judgement[int] = 8  # and rows of the rarest
MAX_BLOCK_COLUMNS: Resource[int] = 6  # of a side: the most significant
MAX_PAIRED_COLUMNS: Resource[int] = 16  # of a side: with more, products of two columns are not tried
PAIRED_FUNCTIONS: Resource[int] = 2  # of a column, in products

# families of ratios (ratios/gaussian, smooth, tables, densities, regressions, predictions, forest, network)
MAX_SCALED_CORRELATION: Numerical[float] = 1 - 1e-6  # of scaled numbers: 6.6 nats
MAX_DEGREES_ROWS: Resource[int] = 10_000  # rows that choose the degrees of freedom
DEGREES: Judgement[tuple[float, ...]] = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0)  # of freedom
# normal scores at which Student's quantiles are tabulated: first, last, number
STUDENT_PLACES: Numerical[tuple[float, float, int]] = (-6.0, 6.0, 8193)
# of both sides together, for local Gaussians; mixtures take twice as many
MAX_LOCAL_COLUMNS: Resource[int] = 6
MAX_MIXTURE_ROWS: Resource[int] = 10_000  # rows a mixture is fitted to,
ROWS_PER_COMPONENT: Judgement[int] = 20  # and the least number for each of its components
EM_STEPS: Numerical[int] = 60
EM_GAIN: Numerical[float] = 3e-4  # nats below which it stops
MIXTURE_RIDGE: Numerical[float] = 1e-4  # variance added to every column
MAX_LOCAL: Resource[int] = 1000  # local Gaussians,
MAX_LOCAL_WORK: Resource[int] = 1_500_000  # and their number times that of rows
MAX_LOCAL_ROWS: Resource[int] = 4000  # beyond, a fitted mixture is better
LOCAL_WIDTH: Judgement[float] = 0.5  # factor of the neighbours' covariance,
LOCAL_ISOTROPY: Judgement[float] = 0.03  # and its isotropic share
MAX_LIGHT_TAIL: Judgement[float] = 4.0  # scaled units: Gaussians do not follow heavier tails
FLOOR_32: Numerical[float] = 1e-30  # of a sum of ratios in float32
MAX_EXPONENT_32: Numerical[float] = 80.0  # e^80 is still a float32
MIN_TABLE_RATIO: Numerical[float] = 1e-9
TABLE_PRIOR_ROWS: Judgement[float] = 2.0  # weight of independence in a table of bins
MIN_DISCOUNT: Numerical[float] = 0.05  # of one row
MAX_DISCOUNT: Numerical[float] = 0.95
MAX_CELLS: Resource[int] = 4_000_000  # of a table
MAX_LEVEL_GAUSSIAN_COLUMNS: Resource[int] = 20
DENSITY_GRID: Numerical[int] = 2048  # places
# in half the central 68 % range
KERNEL_WIDTHS: Judgement[tuple[float, ...]] = (0.02, 0.04, 0.08, 0.15, 0.25, 0.4)
SHARP_BINS: Judgement[tuple[int, ...]] = (1, 2, 4, 8, 16, 32)  # of a histogram between hard edges,
BLURRED_BINS: Judgement[tuple[int, ...]] = (1, 2, 4, 8)  # and between blurred edges,
BLURS: Judgement[tuple[float, ...]] = (0.01, 0.03, 0.06)  # by these shares of the range
OUTERMOST: Judgement[float] = 0.03  # share of rows cut at either end to find blurred edges
LEVEL_GRID: Numerical[int] = 1024  # places, for the density of a level
MAX_DENSITY_LEVELS: Resource[int] = 64
MIN_DENSITY_ROWS: Judgement[int] = 20  # of a level
KNOTS: Resource[int] = 32  # of a curve; the penalty decides how many count
ADDITIVE_KNOTS: Resource[int] = 14  # per column of an additive model
MAX_ADDITIVE_COLUMNS: Resource[int] = 12
MAX_SPLINE_ROWS: Resource[int] = 50_000
PENALTY_EXPONENTS: Numerical[tuple[float, float, float]] = (-5.0, 5.1, 0.5)  # of ten: first, end, step
MAX_SOURCE_COLUMNS: Resource[int] = 100  # columns,
MAX_SOURCE_LEVELS: Resource[int] = 64  # and levels, that predict a number
MARGINAL_GRID: Numerical[int] = 512  # places; coarse, since the marginal is smooth
MAX_AVERAGED: Resource[int] = 400  # training rows whose conditional densities are averaged for the marginal,
MAX_AVERAGED_OTHERS: Resource[int] = 800  # and for several numbers
MAX_SURFACE_COLUMNS: Resource[int] = 2  # that predict several numbers,
MAX_RESPONSE_COLUMNS: Resource[int] = 8  # at most so many
COVARIANCE_RIDGE: Numerical[float] = 1e-6
TREES: Resource[int] = 16  # of either side
# fewer rows do not show what a network learns and smaller families do not, such as a rotation that depends on length
MIN_NETWORK_ROWS: Judgement[int] = 1500
MAX_NETWORK_ROWS: Resource[int] = 20_000
MAX_NETWORK_COLUMNS: Resource[int] = 1024  # of a side
NETWORK_VALIDATION: Judgement[float] = 0.15  # share of rows that decide when to stop
MAX_FOREST_ROWS: Resource[int] = 4000
FOREST_CHUNK: Resource[int] = 1000  # rows scored at a time
# of a side; of more, blocks of columns that depend on each other are found first
MAX_FOREST_COLUMNS: Resource[int] = 64
MIN_LEAF: Judgement[int] = 4  # rows of a leaf,
LEAF_SHARE: Judgement[float] = 0.015  # and their share of all
MIN_FOREST_RATIO: Numerical[float] = 1e-3

# the best estimate and its interval (interval, calibration.json); baselines
MAX_UNSEEN_LEVELS: Judgement[float] = 0.9  # share of rows with unseen levels from which extrapolation stops
# standard errors from which the interval treats folds as independent
CLEARLY_ABOVE_ZERO: Judgement[float] = 3.0
MIN_SPREAD: Numerical[float] = 0.002  # nats of an interval
KSG_NEIGHBOURS: Judgement[int] = 5
MAX_TREE_COLUMNS: Resource[int] = 10  # beyond, a search tree visits nearly all pairs
MAX_DENSE_ROWS: Resource[int] = 3000  # for all pairs,
MAX_TREE_ROWS: Resource[int] = 30_000  # and for a tree, to keep baselines cheap
ROUNDING: Numerical[float] = 1e-9  # nats
SHOWN_WEIGHTS: Judgement[int] = 4  # ratios named in `critic`
MIN_LAW_ERROR: Numerical[float] = 1e-3  # nats

# bounds by name (bound_choice, bound_estimate, measure, fit, prediction_bound)
POOLED_NEGATIVES: Judgement[int] = 7  # per anchor, for bounds with one sum over all anchors
MINE_MOMENTUM: Judgement[float] = 0.99
MIN_EFFECTIVE_SAMPLES: Judgement[float] = 20.0  # anchors, and keys, that must carry the mean of e^f
MAX_TRAINING_ROWS_SCORED: Resource[int] = 4096  # to measure optimism
NETWORK_CHUNK: Resource[int] = 256  # rows scored at a time
NEAR_CEILING: Judgement[float] = 0.8  # share of the ceiling from which an estimate may be limited by it
JACKKNIFE_GROUPS: Resource[int] = 10  # of samples, left out in turn
# of probabilities in the table's first guess, so that its logarithm is finite
MIN_FIRST_GUESS: Numerical[float] = 0.02
MAX_VALIDATION_BLOCK: Resource[int] = 2048  # validation rows contrasted with one another
MAX_KEYS: Resource[int] = 2048  # training rows over which a probability is spread
# of a predicted number; training rows choose
BIN_COUNTS: Judgement[tuple[int, ...]] = (2, 4, 8, 16, 32, 64, 128, 256)
MAX_TRIAL_ROWS: Resource[int] = 512  # training rows that choose the number of bins
PREDICTED_CHUNK: Resource[int] = 512  # rows at a time

# divergence, lags, all pairs, labels, densities, tables of probabilities
MAX_OUTSIDE: Judgement[float] = 0.1  # share of p's rows outside the range of q
# factor of the interval: e^f has a long tail, and the fitted ratio is less extreme than the true one
LONG_TAIL: Judgement[float] = 1.5
MAX_DIVERGENCE_RATIO: Judgement[float] = 12.0  # a mean of larger exponentials cannot be observed
KL_JACKKNIFE_GROUPS: Resource[int] = 20  # of rows, left out in turn
MIN_TIME_BLOCKS: Judgement[int] = 40  # a fold needs ten blocks
TIME_FOLDS: Judgement[int] = 5
FORGOTTEN: Judgement[float] = 0.05  # rank autocorrelation below which a series has forgotten its past
SCREENING_BINS: Resource[int] = 32
MIN_COLUMN_ROWS: Judgement[int] = 20
MIN_EXPECTED: Judgement[int] = 5  # rows per cell of a grid, for the chi-squared law of its G statistic
TESTED_BINS: Judgement[tuple[int, ...]] = (2, 4, 8)
CELL_CONCENTRATION: Judgement[float] = 0.5  # of the Dirichlet prior, per cell (Jeffreys)
# columns on either side of a block of pairs: 32² pairs of 32² counts in float64 are 8 MB
PAIR_BLOCK: Resource[int] = 32
REFINED: Resource[int] = 256  # pairs
MATRIX_FOLDS: Resource[int] = 3
MATRIX_BLOCK: Resource[int] = 64  # rows that are permuted together in the test of a refined pair
MAX_DEGREE: Resource[int] = 4  # of Hermite polynomials
MAX_WEAK: Judgement[float] = 0.3  # Σ c² up to which its half is close to the information
LABEL_JACKKNIFE_GROUPS: Resource[int] = 50  # of rows, left out in turn
LABEL_CONFIDENCE: Judgement[float] = 0.95  # of the one-sided limit
UNIFORM_SHARES: Judgement[tuple[float, ...]] = (0.1, 0.01, 0.001)  # of the uniform distribution in q
MAX_ITERATIONS: Numerical[int] = 100  # for p; a handful is enough
# of log K; the gap is subtracted, so that the limit holds however early it stops
LABEL_TOLERANCE: Numerical[float] = 1e-6
MAX_NOISE: Resource[float] = 2e10  # numbers
SUM_TOLERANCE: Numerical[float] = 1e-6  # of the sum, for distributions in single precision
