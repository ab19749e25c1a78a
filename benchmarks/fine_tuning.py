"""Every task on real data: the demo's LUKE beside its own base encoder and beside answering without looking.

Both are fine-tuned by the same command with the same settings, three seeds each. The data are small free sets (WNUT-17,
WikiGold, FewRel's validation part, XQuAD), or made of them:

- ner: WNUT-17, sentences of its training and its development part.
- relation-classification: FewRel's sixteen relations.
- text-classification: the same sentences without their mentions.
- entity-typing: the mentions of WikiGold with their four types; every fifth document is held out.
- cloze: a sentence of a WikiGold document with one mention taken out; the document's other sentences are the passage, their
  mentions the candidates.
- question-answering: XQuAD's English part; every fifth article is held out.

Of each, 640 examples to learn from and 400 to be tested on are drawn, so that a CPU needs about half an hour for all.

    python benchmarks/fine_tuning.py DATA_FOLDER [--tasks ner cloze]
"""

import argparse
import json
import logging
import random
import sys
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "benchmarks" / "data" / "fine_tuning"
SEEDS = (1, 2, 3)
TRAINED, TESTED = 640, 400
# The encoder is small (6 layers of 384): higher rates than the papers', whose models are large.
RATE, EPOCHS, BATCH = 3e-4, 3, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path, help="folder with ner/wnut17, ner/wikigold, re/fewrel, qa/xquad")
    parser.add_argument("--tasks", nargs="+", choices=sorted(MAKERS), default=list(MAKERS))
    parser.add_argument("--luke", type=Path, default=ROOT / "demo" / "model")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    if not options.luke.exists():
        sys.exit(f"{options.luke} is not there: run `make demo` first, or give --luke")
    results = {}
    for task in options.tasks:
        train, test = MAKERS[task](options.data)
        results[task] = {
            "without looking": without_looking(task, train, test),
            "base encoder": tuned(task, "base", base_model(), train, test),
            "LUKE": tuned(task, "luke", options.luke, train, test),
        }
        show(task, results[task])
        options.output.mkdir(parents=True, exist_ok=True)
        path = options.output / f"fine_tuning_{task}.json"
        path.write_text(json.dumps({"date": date.today().isoformat(), "seeds": SEEDS, **results[task]}, indent=2) + "\n")


def base_model() -> Path:
    """The encoder that the demo's LUKE was made of."""
    sys.path.insert(0, str(ROOT / "examples" / "demo"))
    from run import base_model as found

    return Path(found())


def tuned(task: str, name: str, model: Path, train: Path, test: Path) -> dict[str, Any]:
    """Mean and deviation over the seeds of the last epoch's metrics on the test part, and each run's main metric."""
    from luke.tasks.training import FineTuning, evaluate, fine_tune, load_fine_tuned, task_class

    runs = []
    for seed in SEEDS:
        how = FineTuning(RATE, BATCH, EPOCHS, BATCH, seed=seed)
        output = WORK / task / f"{name}-{seed}"
        fine_tune(task, str(model), train, None, output, how)  # the test part chooses nothing
        runs.append(evaluate(load_fine_tuned(output, task), test))
    metric = task_class(task).metric
    values = [run[metric] for run in runs]
    mean = sum(values) / len(values)
    deviation = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
    return {"metric": metric, "mean": mean, "deviation": deviation, "runs": runs}


def without_looking(task: str, train: Path, test: Path) -> float:
    """The main metric of what can be said of all examples alike: the most frequent label; no mention; the whole context; the
    passage's most frequent candidate."""
    from luke.tasks.training import task_class

    chosen = task_class(task)
    options = chosen.options_class()
    seen, examples = chosen.read(train, options), chosen.read(test, options)
    if task == "ner":
        return 0.0  # most words are in no mention, and no mention found is an F1 of 0
    predictions: list[Any]
    if task == "question-answering":
        predictions = [(example.context, 1.0, 0.0) for example in examples]  # text, score, score of no answer
    elif task == "cloze":
        predictions = [(most_frequent(e.text[a:b] for a, b in e.candidates), 0.0) for e in examples]
    elif task == "entity-typing":
        label = most_frequent(label for example in seen for label in example.types)
        predictions = [{label: 1.0} for _ in examples]
    else:
        predictions = [(most_frequent(example.label for example in seen), {}) for _ in examples]
    made = chosen(options, None, chosen.labels_of(seen))  # type: ignore[arg-type]
    return made.metrics(examples, predictions)[chosen.metric]


def most_frequent(values: Any) -> Any:
    """The most frequent, the first in order of those alike."""
    counts = Counter(values)
    return min(counts, key=lambda value: (-counts[value], value))


def show(task: str, result: dict[str, Any]) -> None:
    """One line for people."""
    parts = [f"without looking {100 * result['without looking']:.1f}"]
    for name in ("base encoder", "LUKE"):
        parts.append(f"{name} {100 * result[name]['mean']:.1f} ± {100 * result[name]['deviation']:.1f}")
    print(f"{task} ({result['LUKE']['metric']}): {', '.join(parts)}", flush=True)


# -- data --------------------------------------------------------------------------------------------------------------


def write(task: str, train: list[dict[str, Any]], test: list[dict[str, Any]]) -> tuple[Path, Path]:
    """Two files of JSON lines, drawn from the rows."""
    (WORK / task).mkdir(parents=True, exist_ok=True)
    paths = WORK / task / "train.jsonl", WORK / task / "test.jsonl"
    for path, rows, most in zip(paths, (train, test), (TRAINED, TESTED), strict=True):
        drawn = random.Random(task).sample(rows, min(most, len(rows)))
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in drawn), encoding="utf-8")
    return paths


def named_entities(data: Path) -> tuple[Path, Path]:
    parts = [sentence_rows(data / "ner" / "wnut17" / name) for name in ("wnut17train.conll", "emerging.dev.conll")]
    return write("ner", *parts)


def sentence_rows(path: Path) -> list[dict[str, Any]]:
    """The sentences of a file of columns in the project's form."""
    from luke.tasks.ner import NamedEntityRecognition, NerOptions

    rows = []
    for sentence in NamedEntityRecognition.read(path, NerOptions()):
        places = [(sentence.words[a][0], sentence.words[b - 1][1], label) for a, b, label in sorted(sentence.entities or ())]
        rows.append({"text": sentence.text, "entities": [{"start": a, "end": b, "label": label} for a, b, label in places]})
    return rows


def relations(data: Path) -> tuple[Path, Path]:
    return write("relation-classification", *relation_rows(data))


def relation_rows(data: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Sentences of each relation in the project's form; every third is held out."""
    from luke.tasks.task import join_words

    train: list[dict[str, Any]] = []
    test: list[dict[str, Any]] = []
    for label, rows in json.loads((data / "re" / "fewrel" / "val_wiki.json").read_text(encoding="utf-8")).items():
        for number, row in enumerate(rows):
            text, words = join_words(row["tokens"])
            head, tail = ([words[row[k][2][0][0]][0], words[row[k][2][0][-1]][1]] for k in ("h", "t"))
            (test if number % 3 == 0 else train).append({"text": text, "head": head, "tail": tail, "label": label})
    return train, test


def texts(data: Path) -> tuple[Path, Path]:
    parts = [[{"text": row["text"], "label": row["label"]} for row in rows] for rows in relation_rows(data)]
    return write("text-classification", *parts)


def wikigold(data: Path) -> dict[int, list[tuple[str, list[tuple[int, int, str]]]]]:
    """The sentences of each document, with their mentions by characters."""
    from luke.tasks.conll import read_columns, spans_of_tags
    from luke.tasks.task import join_words

    documents: dict[int, list[tuple[str, list[tuple[int, int, str]]]]] = {}
    for document, words, tags in read_columns(data / "ner" / "wikigold" / "wikigold.conll.txt", "utf-8"):
        text, places = join_words(words)
        mentions = [(places[start][0], places[end - 1][1], label) for start, end, label in spans_of_tags(tags or [])]
        documents.setdefault(document, []).append((text, mentions))
    return documents


def types(data: Path) -> tuple[Path, Path]:
    parts: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for document, sentences in wikigold(data).items():
        for text, mentions in sentences:
            parts[document % 5 == 0].extend(
                {"text": text, "start": s, "end": e, "labels": [label]} for s, e, label in mentions
            )
    return write("entity-typing", *parts)


def cloze(data: Path) -> tuple[Path, Path]:
    parts: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for document, sentences in wikigold(data).items():
        for number, (query, mentions) in enumerate(sentences):
            passage, candidates = "", []
            for text, others in sentences[:number] + sentences[number + 1 :]:
                shift = len(passage) + bool(passage)
                passage += (" " if passage else "") + text
                candidates += [{"start": start + shift, "end": end + shift} for start, end, _ in others]
            names = {passage[span["start"] : span["end"]] for span in candidates}
            for start, end, _ in mentions:
                if query[start:end] in names and len(names) > 2:
                    gap = f"{query[:start]}@placeholder{query[end:]}"
                    row = {"text": passage, "entities": candidates, "query": gap, "answers": [query[start:end]]}
                    parts[document % 5 == 0].append(row)
    return write("cloze", *parts)


def questions(data: Path) -> tuple[Path, Path]:
    articles = json.loads((data / "qa" / "xquad" / "xquad.en.json").read_text(encoding="utf-8"))["data"]
    parts: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for number, article in enumerate(articles):
        for paragraph in article["paragraphs"]:
            for entry in paragraph["qas"]:
                answers = [{"text": answer["text"], "start": answer["answer_start"]} for answer in entry["answers"]]
                row = {"id": entry["id"], "question": entry["question"], "context": paragraph["context"], "answers": answers}
                parts[number % 5 == 0].append(row)
    return write("question-answering", *parts)


MAKERS = {
    "relation-classification": relations,
    "entity-typing": types,
    "text-classification": texts,
    "cloze": cloze,
    "ner": named_entities,
    "question-answering": questions,
}


if __name__ == "__main__":
    main()
