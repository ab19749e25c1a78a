"""Entity disambiguation on real input, on a CPU: a recipe of the commands that a user types, each printed before it runs.

Corpus and base encoder are those of ``examples/demo``. A fifth of the pages is held out: candidates, vocabulary and model
know only the others, and the links of the held-out pages are the test. The model is trained on growing parts of the training
pages, which gives a learning curve. A step whose output is already there is not done again; a killed one continues.
"""

import importlib.util
import json
import os
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "demo_ed"
HELD_OUT = 0.2
PAGES = {"a quarter": 21, "half": 42, "all": None}  # documents read for training
EPOCHS = {"stage1": 0.5, "stage2": 1}
# The corpus is small: nearly all links of an item are predicted at a time, not 30 % as in a real run.
MASKS = ("--masked-entity-prob", 0.9)


def demo_recipe() -> Any:
    """The functions of the other demo: the corpus, the base, and running a command."""
    spec = importlib.util.spec_from_file_location("demo_recipe", ROOT / "examples" / "demo" / "run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train(recipe: Any, dataset: Path, base: Path, runs: Path) -> Path:
    """Both stages through the guide's script; returns the model's folder."""
    os.environ.update(LUKE_ED_DATASET_DIR=str(dataset), LUKE_ED_BASE_MODEL=str(base), LUKE_ED_OUTPUT_DIR=str(runs))
    for stage, options in (
        ("stage1", ("--entity-emb-init", "titles", "--freeze-entity-emb")),
        ("stage2", ()),
    ):
        recipe.run(
            *("deepspeed", "--num_gpus=1", "examples/entity_disambiguation/train.py"),
            *("--deepspeed_config", f"examples/demo_ed/{stage}.json", "--worker-log-dir", runs / "deepspeed_logs"),
            *("--num-epochs", EPOCHS[stage], *MASKS, *options),
        )
    recipe.run("luke", "convert-checkpoint", runs / "stage2", runs / "model")
    return runs / "model"


def evaluate(recipe: Any, name: str, *options: object) -> dict[str, Any]:
    """Figures on the links of the held-out pages, with the candidates of the training pages."""
    output = DEMO / f"{name}.json"
    if not output.exists():
        recipe.run(
            *("luke", "evaluate-ed", DEMO / "pages", "--format", "pages", "--held-out-fraction", HELD_OUT),
            *("--candidates", DEMO / "candidates", *options, "--output", output, "--html", DEMO / f"{name}.html"),
        )
    (found,) = json.loads(output.read_text(encoding="utf-8"))["benchmarks"].values()
    return dict(found)


def row(name: str, found: dict[str, Any]) -> str:
    """A line of the table, on mentions with more than one candidate."""
    ambiguous = found["ambiguous"]
    low, high = ambiguous["intervals"]["accuracy"]
    gain_low, gain_high = ambiguous["intervals"]["gain_over_prior"]
    return (
        f"{name:<32}{100 * found['accuracy']:>7.1f}{100 * found['candidate_recall']:>9.1f}"
        f"{100 * ambiguous['accuracy']:>12.1f} [{100 * low:.1f}, {100 * high:.1f}]"
        f"{100 * ambiguous['gain_over_prior']:>+10.1f} [{100 * gain_low:+.1f}, {100 * gain_high:+.1f}]"
    )


def main() -> None:
    """Dump -> pages -> candidates -> vocabulary -> datasets -> models -> figures."""
    begin = time.monotonic()
    recipe = demo_recipe()
    DEMO.mkdir(exist_ok=True)
    base, pages, candidates = recipe.base_model(), DEMO / "pages", DEMO / "candidates"
    recipe.run("luke", "build-dump-db", recipe.corpus(), pages)
    recipe.run(
        *("luke", "build-candidates", pages, candidates, "--allow-missing-pages", "--held-out-fraction", HELD_OUT),
    )
    white_list, vocabulary = DEMO / "candidates.txt", DEMO / "entity_vocab.jsonl"
    recipe.run("luke", "list-candidates", pages, "--format", "pages", "--candidates", candidates, "--output", white_list)
    recipe.run(
        *("luke", "build-entity-vocab", pages, vocabulary, "--allow-missing-pages"),
        *("--white-list", white_list, "--white-list-only"),
    )
    rows = [row("prior of the training pages", evaluate(recipe, "prior"))]
    for name, documents in PAGES.items():
        folder = DEMO / name.replace(" ", "_")
        folder.mkdir(exist_ok=True)
        recipe.run(
            *("luke", "build-wikipedia-pretraining-dataset", pages, base, vocabulary, folder / "dataset"),
            *("--held-out-fraction", HELD_OUT, "--max-seq-length", 128),
            *(() if documents is None else ("--max-num-documents", documents)),
        )
        model = train(recipe, folder / "dataset", base, folder)
        for mode in ("local", "global") if documents is None else ("global",):
            found = evaluate(recipe, f"{folder.name}_{mode}", "--model", model, "--inference", mode)
            rows.append(row(f"{name} of the pages, {mode}", found))
    print(f"\n{'':<32}{'acc.':>7}{'recall':>9}{'ambiguous':>12}{'':<14}{'over prior':>10}")
    print("\n".join(rows))
    print(
        "\nacc.: right answers among all links of the held-out pages; recall: the right entity is among the candidates;\n"
        "ambiguous: right answers among mentions with more than one candidate; in brackets 95 % bootstrap intervals."
    )
    print(f"\nDone in {(time.monotonic() - begin) / 60:.1f} minutes: see {os.path.relpath(DEMO, ROOT)}/all_global.html")


if __name__ == "__main__":
    main()
