"""Algorithms: rows with a name of their own, names with a number in them (``topk-0.15``,
``strom-0.001``, ``powersgd-r2``), coded exchanges (``<scheme>-auto``, ``<scheme>-r<r>``), and
parts added to an algorithm by its name: ``laplace-0.01+int8``.

``down`` stands only where the way down is coded too; elsewhere the mean returns as float32.

    <algorithm>[+<value coding>][+layers][+overlap]

in this order, so that one algorithm has one name. ``<algorithm>`` is a row or matches a pattern.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from testbed.algorithm import Algorithm, Number, Pattern
from testbed.compress.base import RecipeChoice, codings
from testbed.errors import InputError


def _row(scheme: str, about: str) -> Algorithm:
    options = {"scheme": scheme, "r": "auto"}
    return Algorithm(scheme, exchange="coded", exchange_options=options, about=about)


CODED: dict[str, Algorithm] = {
    "cssgd": _row(
        "literal", "CSSGD as published: a block for every r workers, sums of parts by multicast."
    ),
    "cssgd-columns": replace(
        _row("literal", "CSSGD whose parts are columns of every layer's matrix, as printed."),
        name="cssgd-columns",
        exchange_options={"scheme": "literal", "r": "auto", "split": "columns"},
    ),
    "replicated": _row(
        "replicated",
        "Groups of r workers compute the same and each multicast a slice of it: uncoded.",
    ),
    "grouped": _row(
        "grouped", "CSSGD in clusters of r + 1, then slices of the clusters' sums by multicast."
    ),
    "combined": _row(
        "combined",
        "Coded reduce-scatter in clusters of r + 1, then slices by multicast (Compressed CDC).",
    ),
}
"""Algorithms of the coded exchanges, keyed by the beginning of their names."""


WRITTEN: dict[str, RecipeChoice] = {
    "qsgd-4bit": RecipeChoice("qsgd", {"levels": 7}),
    "qsgd-8bit": RecipeChoice("qsgd", {"levels": 127}),
    "maxmin-4bit": RecipeChoice("maxmin", {"bits": 4, "rounding": "stochastic"}),
}
"""Value codings with options that have a name of their own, in rows and after a ``+``."""


def _adaptive(name: str, about: str, **options: Any) -> Algorithm:
    """Exact top-k with error feedback, its density chosen by the controller called ``name``."""
    return Algorithm(name, "topk", "feedback", name, options, about=about)


def _adatopk(name: str, about: str, **options: Any) -> Algorithm:
    return replace(_adaptive("adatopk", about, **options), name=name)


def _delay_aware(number: int, rule: str) -> Algorithm:
    """One of the family; its workers agree on the largest delay."""
    name, about = f"dc2-da{number}", f"DC2-style DA{number} (a reconstruction): {rule}"
    return replace(_adaptive(name, about), agree=True)


def _layered(name: str, about: str) -> Algorithm:
    """Every layer by itself, in buckets that overlap; densities by the controller ``name``."""
    return Algorithm(
        name,
        "laplace",
        "feedback",
        name,
        buckets="layer",
        bucket_bytes=64 * 1024,
        overlap=True,
        about=about,
    )


def _whole(name: str, about: str, **options: Any) -> Algorithm:
    """The same controller for one vector, which travels when the computation has ended."""
    return Algorithm(f"{name}-whole", "laplace", "feedback", name, options, about=about)


def _scheduled(name: str, about: str, form: str) -> Algorithm:
    options = {"form": form, "from": 0.29, "to": 0.001, "steps": 200}
    return replace(_adaptive("schedule", about, **options), name=name)


def _written(name: str, about: str, memory: str = "none", **more: Any) -> Algorithm:
    """All elements, each written as the coding called ``name`` does it."""
    coding = WRITTEN.get(name, RecipeChoice(name))
    options = {"values_options": dict(coding.options), **more}
    return Algorithm(name, memory=memory, values=coding.name, about=about, **options)


ROWS: tuple[Algorithm, ...] = (
    Algorithm("none", about="Uncompressed float32: the baseline."),
    _written("fp16", "IEEE 754 half precision both ways.", down="fp16"),
    _written("bf16", "bfloat16 both ways.", down="bf16"),
    Algorithm("ssgd", exchange="peers", about="Synchronous SGD among peers: everybody's gradient to everybody, a copy each."),
    Algorithm("ssgd-multicast", exchange="multicast", about="Synchronous SGD among peers by IP multicast: one copy on the sender's link."),
    Algorithm("ring", exchange="ring", about="Ring all-reduce: 2(n − 1) messages of an n-th of the gradient, float32."),
    Algorithm("ring-bf16", exchange="ring", exchange_options={"values": "bf16"}, about="Ring all-reduce of bfloat16; sums are float32."),
    *(replace(row, name=f"{name}-auto", about=f"{row.about.rstrip('.')}; r is chosen after three steps.") for name, row in CODED.items()),
    Algorithm("allreduce", exchange="allreduce", about="PyTorch's gloo: one float32 all-reduce of the whole gradient."),
    Algorithm("allreduce-bf16", exchange="allreduce-bf16", about="PyTorch's gloo: one all-reduce in bfloat16, sums and all."),
    Algorithm("ddp", exchange="ddp", about="As DistributedDataParallel: float32 all-reduces of 25 MiB buckets by gloo during the backward pass."),
    Algorithm("asgd", exchange="ps-async", about="Asynchronous SGD: the server applies each gradient when it comes, and answers its sender with parameters."),
    _adatopk("adatopk", "AdaTopK, Algorithm 1 as printed; k_dec = k_min."),
    _adatopk("adatopk-kd0.05", "AdaTopK with k_dec = 0.05.", k_dec=0.05),
    _adatopk("adatopk-kd0.1", "AdaTopK with k_dec = 0.1.", k_dec=0.1),
    _adatopk("adatopk-kd0.15", "AdaTopK with k_dec = 0.15.", k_dec=0.15),
    _adatopk("adatopk-kdmax", "AdaTopK with k_dec = k_max.", k_dec="k_max"),
    _adatopk("adatopk-tomin", "AdaTopK that lowers k towards k_min.", decrease="toward_min"),
    _adatopk("adatopk-kmax0.26", "AdaTopK with the other k_max of its Table 2.", k_max=0.26),
    _adatopk("adatopk-eps0.9", "AdaTopK with ε = 0.9 of its Table 2 for raising.", p_inc=0.9),
    _adatopk("adatopk-slope", "AdaTopK that sees congestion in a least-squares slope.", trend="slope"),
    _adatopk("adatopk-signed", "AdaTopK for which falling accuracy is no growth.", accuracy="signed"),
    replace(_adatopk("adatopk-agreed", "AdaTopK whose workers agree on delay and accuracy."), agree=True),
    _adatopk("adatopk-perbyte", "AdaTopK that looks at delay per byte.", delay="per_byte"),
    _adaptive("adatopk-eq2", "AdaTopK's equation (2): of several densities the one with the greatest normalised gain."),
    _adaptive("adalag", "AdaLag: the seconds that bytes take against the lag of what is held back."),
    Algorithm(
        "oracle", "topk", "feedback", "adalag", {"bytes_take": "known"},
        about="AdaLag that knows the rates of all links: a bound, not for use.",
    ),
    _delay_aware(1, "k_max while delay is near its least, else k_min."),
    _delay_aware(2, "half of k when delay grows, else k up by a hundredth."),
    _delay_aware(3, "k in proportion to smoothed delay."),
    _delay_aware(4, "five levels, lenient thresholds of delay."),
    _delay_aware(5, "five levels, strict thresholds of delay."),
    _adaptive("aimd-delay", "AIMD in the style of NetSenseML: k up while smoothed delay falls, else 0.95 k."),
    _adaptive("aimd-bdp", "AIMD in the style of NetSenseML: k up while messages are below 0.9 of the bandwidth-delay product."),
    Algorithm(
        "accordion", "topk", "feedback", "accordion", buckets="layer",
        about="Accordion: 0.99 of each layer whose gradient's norm is changing, 0.1 of the others.",
    ),
    _layered("algc", "ALGC (rules of ours): layers worth compressing, least total error in the bytes that hide, with overlap."),
    replace(
        _layered("algc", "ALGC whose server is sent the residuals, too, in every 50th step."),
        name="algc-residuals", options={"residuals_every": 50},
    ),
    _whole("algc", "ALGC's budget for one vector with one density, without overlap.", layerwise=False, threshold=False),
    _layered("lags", "LAGS for a parameter server: every bucket as dense as hides behind the backward pass."),
    _whole("lags", "LAGS for one vector, without overlap."),
    _layered("lgreco", "L-GreCo: fewest bytes at the error of 0.01 for all layers, with overlap."),
    _whole("lgreco", "L-GreCo for one vector, where nothing is left to choose: 0.01, without overlap."),
    _scheduled("topk-linear", "Exact top-k, from 0.29 to 0.001 in 200 equal differences.", "linear"),
    _scheduled("topk-exponential", "Exact top-k, from 0.29 to 0.001 in 200 equal ratios.", "exponential"),
    Algorithm("dgc-warmup", "dgc", "dgc", "dgc-warmup", about="DGC with its warm-up: 0.25, 0.0625, 0.015625, 0.004, then 0.001 by epoch."),
    _adaptive("random-walk", "Exact top-k at a random density of mean 0.116, AdaTopK's fixed point.", mean=0.116),
    Algorithm(
        "onebit", memory="feedback", values="onebit", values_options={"per": "row"},
        about="1-bit SGD: signs, and two means for each row of a matrix; error feedback.",
    ),
    Algorithm(
        "onebit-double", memory="feedback", values="onebit", values_options={"per": "row"},
        down="onebit", down_options={"per": "row"}, down_memory="feedback",
        about="1-bit SGD both ways, as published; the server has error feedback of its own.",
    ),
    Algorithm(
        "signsgd", values="sign", values_options={"scale": "one"}, down="sign",
        down_options={"scale": "one"},
        about="signSGD with majority vote: ±1 up, the sign of their sum down (+1 where it is 0).",
    ),
    Algorithm(
        "ef-signsgd", memory="feedback", values="sign",
        about="EF-signSGD: signs times the mean magnitude; error feedback.",
    ),
    Algorithm("terngrad", values="ternary", about="TernGrad: clipped at 2.5 σ, −1, 0 or +1 by chance."),
    _written("qsgd-4bit", "QSGD with 7 levels and a sign: 4 bits, unbiased."),
    _written("qsgd-8bit", "QSGD with 127 levels and a sign: 8 bits, unbiased."),
    _written("qsgd-elias", "QSGD with 7 levels in Elias codes, as published: as many bits as they need, unbiased."),
    _written("natural", "Natural compression: a random neighbouring power of two, unbiased."),
    _written("int8", "8-bit integers with a scale for each bucket."),
    _written("maxmin-4bit", "CGX: 16 levels from least to greatest of each bucket, unbiased."),
)  # fmt: skip
"""Every algorithm with a name of its own."""


DENSITY = Number(
    "density", "a share of the elements, above 0 and at most 1", "0.15", lambda x: 0 < x <= 1
)
MAGNITUDE = Number("tau", "a magnitude, above 1e-37", "0.001", lambda x: 1e-37 < x < 1e38)
REDUNDANCY = Number("r", "a whole number from 1 to 15", "2", lambda x: 1 <= x <= 15 and x % 1 == 0)
BOUND = Number(
    "bound", "a whole number of steps from 0", "3", lambda x: 0 <= x < 2**31 and x % 1 == 0
)
BACKUPS = Number(
    "b", "a whole number of workers from 1", "1", lambda x: 1 <= x < 2**15 and x % 1 == 0
)
RANK = Number("rank", "a whole number from 1 to 64", "2", lambda x: 1 <= x <= 64 and x % 1 == 0)


def _share(selector: str, about: str, memory: str = "feedback", **more: Any) -> Pattern:
    """``<selector>-<density>``."""
    row = Algorithm(f"{selector}-", selector, memory, about=about, **more)
    return Pattern(f"{selector}-", DENSITY, row, _density)


def _density(density: float) -> dict[str, Any]:
    return {"options": {"density": density}}


def _threshold(tau: float) -> dict[str, Any]:
    return {"selector_options": {"at": tau}}


def _strom(tau: float) -> dict[str, Any]:
    return {**_threshold(tau), "values_options": {"scale": tau}}


def _thresholds(tau: float) -> dict[str, Any]:
    return {**_threshold(tau), "values_options": {"levels": [tau, 2 * tau, 4 * tau]}}


def _rank(rank: float) -> dict[str, Any]:
    return {"values_options": {"rank": int(rank)}}


def _coded(prefix: str) -> Pattern:
    """``<prefix>-r<r>``, beside the row ``<prefix>-auto``."""
    row = CODED[prefix]

    def set_(r: float) -> dict[str, Any]:
        return {"exchange_options": {**row.exchange_options, "r": int(r)}}

    return Pattern(f"{prefix}-r", REDUNDANCY, replace(row, name=f"{prefix}-r"), set_)


def _bound(bound: float) -> dict[str, Any]:
    return {"exchange_options": {"bound": int(bound)}}


def _backups(backups: float) -> dict[str, Any]:
    return {"exchange_options": {"backups": int(backups)}}


PATTERNS: tuple[Pattern, ...] = (
    _share("topk", "Exact top-k by torch.topk, with error feedback."),
    Pattern("gtopk-", DENSITY, Algorithm("gtopk-", "topk", "feedback", down_memory="feedback", about="Local and global top-k: the server answers with the greatest of the sum of the workers' top-k; error feedback on both sides."), lambda density: {**_density(density), "down_density": density}),
    Pattern("global-topk-", DENSITY, Algorithm("global-topk-", down_memory="feedback", about="Global top-k: whole gradients up, the greatest of their mean down; the server has the error feedback."), lambda density: {"down_density": density}),
    _share("radix", "Exact top-k by the digits of the magnitudes, with error feedback."),
    _share("laplace", "Laplacian threshold with warm-started correction, with error feedback."),
    Pattern("laplace-bisect-", DENSITY, Algorithm("laplace-bisect-", "laplace", "feedback", selector_options={"correction": "bisection"}, about="Laplacian threshold corrected by bisection, from the estimate in every step; error feedback."), _density),
    _share("randk", "Random elements, a seed in place of their indices; error feedback."),
    Pattern("randk-unbiased-", DENSITY, Algorithm("randk-unbiased-", "randk", selector_options={"scale": True}, about="Random elements times n/k, and no memory: unbiased."), _density),
    _share("dgc", "DGC: threshold of a sample; momentum correction and masking.", "dgc"),
    _share("hierarchical", "Threshold of a sample, then exact top-k of the survivors; error feedback."),
    _share("sidco-e", "SIDCo, exponential stages; error feedback."),
    _share("sidco-p", "SIDCo, generalised Pareto stages; error feedback."),
    _share("sidco-gp", "SIDCo, gamma and then generalised Pareto stages; error feedback."),
    _share("redsync-trimmed", "RedSync's trimmed top-k; error feedback."),
    _share("redsync-search", "RedSync's threshold search; error feedback."),
    _share("gaussian", "GaussianK: threshold of a normal distribution; error feedback."),
    _share("mstopk", "MSTop-k: approximate threshold in many small steps; error feedback."),
    _share("dryden", "Dryden's adaptive quantisation: 1 bit for each element sent; error feedback.", values="onebit"),
    Pattern("adaptive-", DENSITY, Algorithm("adaptive-", "topk", "feedback", values="onebit", about="Adaptive quantisation: magnitudes are sorted and the greatest quantised to two means, 1 bit each; error feedback."), _density),
    Pattern("allgather-topk-", DENSITY, Algorithm("allgather-topk-", "topk", "feedback", exchange="allgather", about="Exact top-k, everybody's gathered by PyTorch's gloo; error feedback."), _density),
    Pattern("threshold-", MAGNITUDE, Algorithm("threshold-", "threshold", "feedback", about="Hard threshold with error feedback: all of at least that magnitude."), _threshold),
    Pattern("strom-", MAGNITUDE, Algorithm("strom-", "threshold", "feedback", values="sign", about="Strom's threshold quantisation: ±τ where the magnitude reaches it; error feedback."), _strom),
    Pattern("thresholds-", MAGNITUDE, Algorithm("thresholds-", "threshold", "feedback", values="thresholds", about="Threshold quantisation with thresholds τ, 2τ and 4τ: ± the greatest that a magnitude reaches; error feedback."), _thresholds),
    Pattern("powersgd-r", RANK, Algorithm("powersgd-r", memory="feedback", values="lowrank", about="PowerSGD: two thin matrices for each parameter, warm start; error feedback."), _rank),
    *map(_coded, CODED),
    Pattern("asgd-s", BOUND, Algorithm("asgd-s", exchange="ps-async", about="Stale synchronous parallel: asynchronous SGD whose fastest worker is at most so many steps ahead of the slowest."), _bound),
    Pattern("backup-", BACKUPS, Algorithm("backup-", exchange="ps-backup", about="Synchronous SGD with backup workers: a step does not wait for the last b gradients, and drops them."), _backups),
)  # fmt: skip
"""Every pattern of names."""


LAYERS, OVERLAP, EXACT = "layers", "overlap", "fp32"

BUCKET_BYTES = 1 << 16
"""The size of buckets that overlap, where nothing else is said: small enough for most layers of a
model to have a bucket of their own, and large beside what a message costs."""


@dataclass(frozen=True, slots=True)
class Suffix:
    """A suffix that can follow an algorithm's name, for people to read."""

    form: str
    about: str


SUFFIXES = (
    Suffix("+<values>", "values on the way up are written so, e.g. laplace-0.01+int8"),
    Suffix(f"+{LAYERS}", f"every parameter is compressed by itself, e.g. topk-0.01+{LAYERS}"),
    Suffix(f"+{OVERLAP}", f"layers travel while others are computed, e.g. none+{OVERLAP}"),
)


def value_coding_names() -> list[str]:
    """Return what ``<values>`` can be: names of value codings, and of those with options."""
    return sorted({*codings, *WRITTEN} - {EXACT})


def extended(base: Algorithm, suffixes: list[str], where: str | None) -> Algorithm:
    """``base`` with what ``suffixes`` say. Raises InputError at ``where`` for unknown ones."""
    rest, name = list(suffixes), "+".join([base.name, *suffixes])
    written = base
    if rest and rest[0] in value_coding_names():
        written = _with_suffix(base, rest.pop(0), name, where)
    if rest[:1] == [LAYERS]:
        written = replace(written, buckets="layer")
        rest.pop(0)
    if rest[:1] == [OVERLAP]:
        size = written.bucket_bytes or BUCKET_BYTES
        written = replace(written, overlap=True, bucket_bytes=size)
        rest.pop(0)
    if rest:
        raise _meaningless(name, rest[0], where)
    about = f"{base.about.rstrip('.')}; with {', '.join(suffixes)}."
    return replace(written, name=name, about=about)


def _with_suffix(base: Algorithm, suffix: str, name: str, where: str | None) -> Algorithm:
    """``base`` with values written as ``suffix`` says."""
    if base.values != EXACT:
        raise InputError(
            f"algorithm {name!r}: {base.name!r} has a value coding already, {base.values!r}",
            where=where,
        )
    coding = WRITTEN.get(suffix, RecipeChoice(suffix))
    return replace(base, values=coding.name, values_options=dict(coding.options))


def _meaningless(name: str, suffix: str, where: str | None) -> InputError:
    values = value_coding_names()
    known = [*values, LAYERS, OVERLAP]
    near = get_close_matches(suffix, known, n=1)
    return InputError(
        f"algorithm {name!r}: nothing is known of '+{suffix}' in this place",
        where=where,
        hint=(f"Did you mean '+{near[0]}'? " if near and near[0] != suffix else "")
        + f"A name is <algorithm>[+<values>][+{LAYERS}][+{OVERLAP}], with <values> one of {', '.join(values)}",
    )
