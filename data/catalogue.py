"""The public traces that the readers know: where they are, what they must be, whose they are.

A fetched file is what its authors published, or it is not kept: a pin is the SHA-256 of the file or the id of
its git blob. Where nobody has published either, the pin is None, and whoever fetches the file is told its
SHA-256 instead. ServeGen is not here: it comes as a folder of a repository, for `tidegate servegen`.
"""

import hashlib
import http
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from data.errors import InputError

CHUNK_BYTES = 1 << 20
ATTEMPTS = 5
"""Connections tried for one file; each goes on where the last one broke off."""

AZURE = "https://raw.githubusercontent.com/Azure/AzurePublicDataset/master/data/"
AZURE_WEEK = "https://azurepublicdatasettraces.blob.core.windows.net/azurellminfererencetrace/"
MOONCAKE = "https://raw.githubusercontent.com/kvcache-ai/Mooncake/main/FAST25-release/traces/"
BURSTGPT = "https://raw.githubusercontent.com/HPMLL/BurstGPT/8345c824bf744e21692186af2835521ba75e5f6d/data/"
BURSTGPT_LFS = (
    "https://media.githubusercontent.com/media/HPMLL/BurstGPT/5d93d820d9b6bee4e26914df003e5713538164ae/data/"
)
BURSTGPT_2_0 = "https://github.com/HPMLL/BurstGPT/releases/download/v2.0/"
BAILIAN = "https://media.githubusercontent.com/media/alibaba-edu/qwen-bailian-usagetraces-anon/main/"

PATEL = "Patel et al., Splitwise: Efficient Generative LLM Inference Using Phase Splitting, ISCA 2024"
STOJKOVIC = (
    "Stojkovic et al., DynamoLLM: Designing LLM Inference Clusters for Performance and Energy, HPCA 2025"
)
QIU = "Qiu et al., ModServe: Modality- and Stage-Aware Resource Disaggregation, SoCC 2025"
WANG = "Wang et al., BurstGPT: A Real-world Workload Dataset to Optimize LLM Serving Systems, KDD 2025"
QIN = "Qin et al., Mooncake: Trading More Storage for Less Computation, FAST 2025"
BAILIAN_PAPER = "Wang et al., KVCache Cache in the Wild, USENIX ATC 2025"


@dataclass(frozen=True, slots=True)
class PublicTrace:
    """A public trace; `pin` is "sha256:<hex>", "git-blob:<hex>", or None where nobody has published one."""

    name: str
    address: str
    pin: str | None
    requests: int | None
    licence: str
    citation: str

    @property
    def file_name(self) -> str:
        """The last part of the address."""
        return self.address.rpartition("/")[2]


TRACES: tuple[PublicTrace, ...] = (
    PublicTrace(
        "azure-2023-code",
        AZURE + "AzureLLMInferenceTrace_code.csv",
        "sha256:54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6",
        8_819,
        "CC-BY 4.0",
        PATEL,
    ),
    PublicTrace(
        "azure-2023-conv",
        AZURE + "AzureLLMInferenceTrace_conv.csv",
        "sha256:2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
        19_366,
        "CC-BY 4.0",
        PATEL,
    ),
    PublicTrace(
        "azure-2024-code",
        AZURE_WEEK + "AzureLLMInferenceTrace_code_1week.csv",
        None,
        16_803_695,
        "CC-BY 4.0",
        STOJKOVIC,
    ),
    PublicTrace(
        "azure-2024-conv",
        AZURE_WEEK + "AzureLLMInferenceTrace_conv_1week.csv",
        None,
        27_303_999,
        "CC-BY 4.0",
        STOJKOVIC,
    ),
    PublicTrace(
        "azure-2025-multimodal",
        AZURE + "AzureLMMInferenceTrace_multimodal.csv.gz",
        "git-blob:7e2a6719ff42dc50b990ba55ca941ab75290ffcb",
        1_000_000,
        "CC-BY 4.0",
        QIU,
    ),
    PublicTrace(
        "burstgpt-1",
        BURSTGPT + "BurstGPT_1.csv",
        "git-blob:f95dd2c84454b067fdd0973858c55ecfe31bdad7",
        None,
        "CC-BY 4.0",
        WANG,
    ),
    PublicTrace(
        "burstgpt-2",
        BURSTGPT_LFS + "BurstGPT_2.csv",
        "sha256:44bf5942b03fca42c01a226a545ad3a750ec62688faecd67b6831c56a8928bf7",
        None,
        "CC-BY 4.0",
        WANG,
    ),
    PublicTrace("burstgpt-3", BURSTGPT_2_0 + "BurstGPT_3.csv", None, None, "CC-BY 4.0", WANG),
    PublicTrace(
        "mooncake-conversation",
        MOONCAKE + "conversation_trace.jsonl",
        "sha256:b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
        12_031,
        "Apache-2.0",
        QIN,
    ),
    PublicTrace(
        "mooncake-toolagent",
        MOONCAKE + "toolagent_trace.jsonl",
        "git-blob:b765599d1e0828b37f68d481563c385d3c11de54",
        23_608,
        "Apache-2.0",
        QIN,
    ),
    PublicTrace(
        "mooncake-synthetic",
        MOONCAKE + "synthetic_trace.jsonl",
        "sha256:bd070915a98fc0ed264d7cfef2ce746002eb3076a695ec31ba2674c0111ec131",
        3_993,
        "Apache-2.0",
        QIN,
    ),
    PublicTrace("bailian-a", BAILIAN + "qwen_traceA_blksz_16.jsonl", None, None, "Apache-2.0", BAILIAN_PAPER),
    PublicTrace("bailian-b", BAILIAN + "qwen_traceB_blksz_16.jsonl", None, None, "Apache-2.0", BAILIAN_PAPER),
    PublicTrace(
        "bailian-coder",
        BAILIAN + "qwen_coder_blksz_16.jsonl",
        "sha256:3d74974cebb7bccb69b1ca6ea210a44d9a3033443c0271ed015327284dea1aff",
        None,
        "Apache-2.0",
        BAILIAN_PAPER,
    ),
    PublicTrace(
        "bailian-thinking",
        BAILIAN + "qwen_thinking_blksz_16.jsonl",
        "sha256:41ac36d9d1b54d084eeb6b05e9d142ba9d02f8bf79cfc9fff418d8ab7cdee906",
        None,
        "Apache-2.0",
        BAILIAN_PAPER,
    ),
)

Progress = Callable[[int, int | None], None]
"""Called with the bytes that are there and the bytes in all, None where the server does not say."""


def find(name: str) -> PublicTrace:
    """The trace of that name. Raises InputError for any other."""
    for trace in TRACES:
        if trace.name == name:
            return trace
    raise InputError(f"trace must be one of {', '.join(trace.name for trace in TRACES)}; got '{name}'")


def fetch(trace: PublicTrace, folder: str | Path, *, progress: Progress | None = None) -> Path:
    """Download a trace into a folder and return its path; a file that is there and matches stays.

    The bytes go to "<file>.part" first, so a broken download goes on where it stopped. Raises InputError when
    the server can't be reached or refuses, and when the file is not the pinned one; that is then removed.
    Without a pin, the server alone says whether the file is whole: the caller should show its SHA-256.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} can't hold traces: {error.strerror}; give a writable folder") from error
    path = folder / trace.file_name
    if path.exists():
        verify(path, trace.pin, trace.address)
        return path
    part = path.with_name(path.name + ".part")
    if trace.pin is None:
        part.unlink(
            missing_ok=True
        )  # nothing would tell whether the rest still fits what an earlier call left
    _download(trace.address, part, progress)
    try:
        verify(part, trace.pin, trace.address)
    except InputError:
        part.unlink()
        raise
    return part.replace(path)


def verify(path: Path, pin: str | None, address: str) -> None:
    """Raise InputError unless the file is the pinned one; without a pin any file is."""
    if pin is None:
        return
    kind, _, expected = pin.partition(":")
    got = digest(path, kind)
    if got != expected:
        raise InputError(
            f"{path} is not the pinned file of {address}: expected {kind} {expected}, got {got}; "
            "remove it and fetch again, or take the trace from its authors by hand"
        )


def digest(path: Path, kind: str) -> str:
    """Hex digest of a file: "sha256", or "git-blob" as git computes it."""
    if kind == "sha256":
        state = hashlib.sha256()
    else:
        state = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            state.update(chunk)
    return state.hexdigest()


def _download(address: str, part: Path, progress: Progress | None) -> None:
    """Bring the part file to its full length, over several connections where they break."""
    trouble: httpx.HTTPError | None = None
    for _ in range(ATTEMPTS):
        try:
            with _open(address, part) as response:
                _store(response, part, progress)
            return
        except httpx.HTTPStatusError as error:
            raise InputError(
                f"{address} answers {error.response.status_code}; "
                "the trace may have moved: look for it by hand"
            ) from error
        except httpx.HTTPError as error:
            trouble = error
    raise InputError(
        f"{address} can't be downloaded: {trouble}. What has arrived stays in {part}; fetch again to go on"
    ) from trouble


@contextmanager
def _open(address: str, part: Path) -> Iterator[httpx.Response]:
    """The answer for the bytes that the part file lacks."""
    have = part.stat().st_size if part.exists() else 0
    # A compressed answer would have other byte positions than the file.
    headers = {"accept-encoding": "identity"} | ({"range": f"bytes={have}-"} if have else {})
    with httpx.stream("GET", address, headers=headers, follow_redirects=True, timeout=30) as response:
        if response.status_code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            response.raise_for_status()
        yield response


def _store(response: httpx.Response, part: Path, progress: Progress | None) -> None:
    """Append the answer to the part file; a server that ignores Range starts it anew."""
    if response.status_code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        return  # all bytes are there already, or too many: the pin decides
    resumed = response.status_code == http.HTTPStatus.PARTIAL_CONTENT
    with part.open("ab" if resumed else "wb") as file:
        length = response.headers.get("content-length")
        total = file.tell() + int(length) if length else None
        for chunk in response.iter_bytes():  # as they come: a fixed size would lose the last part of a cut
            file.write(chunk)
            if progress:
                progress(file.tell(), total)
