"""The algorithms that have a name of their own. One row each.

``down`` stands only where the way down is coded too; elsewhere the mean returns as float32.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from testbed.algorithms.algorithm import Algorithm
from testbed.algorithms.coded import CODED
from testbed.compress.recipe import Choice

WRITTEN: dict[str, Choice] = {
    "qsgd-4bit": Choice("qsgd", {"levels": 7}),
    "qsgd-8bit": Choice("qsgd", {"levels": 127}),
    "maxmin-4bit": Choice("maxmin", {"bits": 4, "rounding": "stochastic"}),
}
"""Value codings with options that have a name of their own, in rows and after a ``+``."""


def _adatopk(name: str, about: str, **options: Any) -> Algorithm:
    return Algorithm(name, "topk", "feedback", "adatopk", options, about=about)


def _adaptive(name: str, about: str, **options: Any) -> Algorithm:
    """Exact top-k with error feedback, its density chosen by the controller called ``name``."""
    return Algorithm(name, "topk", "feedback", name, options, about=about)


def _delay_aware(number: int, rule: str) -> Algorithm:
    """One of the family; its workers agree on the largest delay."""
    name, about = f"dc2-da{number}", f"DC2-style DA{number} (a reconstruction): {rule}"
    return replace(_adaptive(name, about), agree=True)


def _layered(name: str, about: str) -> Algorithm:
    """Every layer by itself, in buckets that travel beside the computation; densities by the controller called ``name``."""
    return Algorithm(
        name, "laplace", "feedback", name,
        buckets="layer", bucket_bytes=64 * 1024, overlap=True, about=about,
    )  # fmt: skip


def _whole(name: str, about: str, **options: Any) -> Algorithm:
    """The same controller for one vector, which travels when the computation has ended."""
    return Algorithm(f"{name}-whole", "laplace", "feedback", name, options, about=about)


def _scheduled(name: str, about: str, form: str) -> Algorithm:
    options = {"form": form, "from": 0.29, "to": 0.001, "steps": 200}
    return Algorithm(name, "topk", "feedback", "schedule", options, about=about)


def _written(name: str, about: str, memory: str = "none", **more: Any) -> Algorithm:
    """All elements, each written as the coding called ``name`` does it."""
    coding = WRITTEN.get(name, Choice(name))
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
    _written("natural", "Natural compression: a random neighbouring power of two, unbiased."),
    _written("int8", "8-bit integers with a scale for each bucket."),
    _written("maxmin-4bit", "CGX: 16 levels from least to greatest of each bucket, unbiased."),
)  # fmt: skip
"""Every algorithm with a name of its own."""
