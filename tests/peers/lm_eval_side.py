"""lm-eval's own verdicts: its filters, metric and process_results on the completions of standard input.

Runs in the folder of the peer (see peer.py). A line in is {"task", "question", "gold", "completion"}, a line out is
{score name: 0 or 1}. gsm8k: the two filters and the metric of its task file; gold is the answer column. math500: both
of its families, minerva_math (exact_match, math_verify) and hendrycks_math; gold is the reference solution.
"""

import importlib.util
import json
import sys
from pathlib import Path

import lm_eval
import yaml
from lm_eval.api.metrics import exact_match_hf_evaluate
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


def main():
    judges = {"gsm8k": gsm8k(), "math500": math500()}
    for line in sys.stdin:
        row = json.loads(line)
        print(json.dumps(judges[row["task"]](row)), flush=True)


if __name__ == "__main__":
    main()
