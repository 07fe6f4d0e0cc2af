"""lm-eval's own verdicts: its filters, metric and process_results on the completions of standard input.

Runs in the folder of the peer (see peer.py). A line in is {"task", "question", "gold", "completion"}, a line out is
{score name: 0 or 1}. gsm8k: the two filters and the metric of its task file; gold is the answer column. math500: both
of its families, minerva_math (exact_match, math_verify) and hendrycks_math; gold is the reference solution. choices: a
line in is {"task", "name", "doc", "logp"}, a line out what its task asks, and its verdicts on these log-likelihoods.
"""

import ast
import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import lm_eval
import yaml
from lm_eval import utils
from lm_eval.api.metrics import exact_match_hf_evaluate
from lm_eval.api.task import ConfigurableTask
from lm_eval.filters.extraction import RegexFilter

TASKS = Path(lm_eval.__file__).parent / "tasks"


def module(path):
    spec = importlib.util.spec_from_file_location(path.parent.name, path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def gsm8k():
    task = yaml.safe_load((TASKS / "gsm8k" / "gsm8k.yaml").read_text())
    (metric,) = task["metric_list"]
    settings = {key: metric[key] for key in ("ignore_case", "ignore_punctuation", "regexes_to_ignore")}
    filters = {}
    for each in task["filter_list"]:
        (regex,) = [step for step in each["filter"] if step["function"] == "regex"]
        filters[each["name"]] = RegexFilter(**{key: value for key, value in regex.items() if key != "function"})

    def verdicts(row):
        found = {}
        for name, extract in filters.items():
            ((prediction,),) = extract.apply([[row["completion"]]], [{}])
            scored = exact_match_hf_evaluate(predictions=[prediction], references=[row["gold"]], **settings)
            found[name] = int(scored["exact_match"])
        return found

    return verdicts


def math500():
    minerva = module(TASKS / "minerva_math" / "utils.py")
    hendrycks = module(TASKS / "hendrycks_math" / "utils.py")

    def verdicts(row):
        answer = minerva.remove_boxed(minerva.last_boxed_only_string(row["gold"]))
        doc = {"problem": row["question"], "solution": row["gold"], "answer": minerva.normalize_final_answer(answer)}
        found = {
            f"minerva_{name}": int(value) for name, value in minerva.process_results(doc, [row["completion"]]).items()
        }
        # its hendrycks task compares what stands between dollar signs; a boxed answer is handed over as such
        boxed = minerva.last_boxed_only_string(row["completion"])
        given = f"${minerva.remove_boxed(boxed)}$" if boxed else row["completion"]
        return {**found, "hendrycks_exact_match": int(hendrycks.process_results(doc, [given])["exact_match"])}

    return verdicts


class Settings(yaml.SafeLoader):
    """A task file; the functions that it names are called here by hand."""


Settings.add_multi_constructor("!function", lambda loader, suffix, node: None)
MULTIPLE_CHOICE = {
    "mmlu": "mmlu/default/_default_template_yaml",
    "hellaswag": "hellaswag/hellaswag.yaml",
    "arc_easy": "arc/arc_easy.yaml",
    "arc_challenge": "arc/arc_easy.yaml",  # which it includes
    "boolq": "super_glue/boolq/default.yaml",
    "piqa": "piqa/piqa.yaml",
}


def choices():
    hellaswag = module(TASKS / "hellaswag" / "utils.py")

    def verdicts(row):
        doc, name = row["doc"], row["name"]
        task = yaml.load((TASKS / MULTIPLE_CHOICE[name]).read_text(), Settings)
        about = ""
        if name == "hellaswag":
            doc = {**doc, **hellaswag.process_docs(type("Rows", (), {"map": lambda self, change: change(doc)})())}
        if name == "boolq":
            doc = {**doc, "label": int(doc["answer"])}
        if name == "mmlu":
            subject = TASKS / "mmlu" / "default" / f"mmlu_{doc['subject']}.yaml"
            about = yaml.load(subject.read_text(), Settings)["description"]
        listed = task["doc_to_choice"]
        if isinstance(listed, str):
            listed = doc[listed] if listed in doc else ast.literal_eval(utils.apply_template(listed, doc))
        target = task["doc_to_target"]
        right = int(doc[target] if target in doc else utils.apply_template(target, doc))
        stand_in = SimpleNamespace(
            config=SimpleNamespace(process_results=None, repeats=1),
            OUTPUT_TYPE="multiple_choice",
            _metric_fn_list={"acc": None, "acc_norm": None},
            multiple_input=False,
            multiple_target=False,
            doc_to_choice=lambda doc: listed,
            doc_to_target=lambda doc: right,
        )
        scored = ConfigurableTask.process_results(stand_in, doc, [(value, False) for value in row["logp"]])
        text = about + utils.apply_template(task["doc_to_text"], doc)
        return {"text": text, "choices": list(listed), "right": right, **scored}

    return verdicts


def main():
    judges = {"gsm8k": gsm8k(), "math500": math500(), "choices": choices()}
    for line in sys.stdin:
        row = json.loads(line)
        print(json.dumps(judges[row["task"]](row)), flush=True)


if __name__ == "__main__":
    main()
