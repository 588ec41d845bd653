"""Training and translating beside JoeyNMT: the same model, subwords, text and threads, in turns within one run.

    python benchmarks/translation.py --data DATA/multi30k --joeynmt JOEY/bin/python [--model FOLDER]

JoeyNMT needs an environment of its own (``pip install joeynmt==2.3.0 importlib_metadata sentencepiece==0.2.1``). Both
train a Transformer of 4 + 4 layers, width 128, for some updates; rates are target tokens per second without the first
stretch. For translating, JoeyNMT gets our weights (``--model``, or those that were just trained), so that both write
the same sentences; start-up is not counted.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import yaml
from safetensors.torch import load_file

import attnscope_lineage.models  # noqa: F401 known to the Auto classes
from attnscope.kernels.positions import sinusoidal_table

SIZES = {"width": 128, "heads": 4, "feed_forward": 256, "layers": 4, "dropout": 0.3}
SPECIALS, ORDER = ("unk", "pad", "bos", "eos"), (3, 0, 1, 2)  # of JoeyNMT, and their places in our vocabulary
HERE = [sys.executable, "-c", "from attnscope.cli import main; main()"]


def measured(command, threads, **options):
    """Seconds, peak memory in MiB and what was printed."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    with tempfile.TemporaryFile("w+") as said:
        started = time.monotonic()
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=environment, **options)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - started
        said.seek(0)
        text = said.read()
    if status:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{text[-3000:]}")
    return seconds, usage.ru_maxrss / 1024, text


class Ours:
    name = "attnscope"

    def __init__(self, args, work):
        self.args, self.out = args, work / "ours"
        self.rounds = 0

    def train(self):
        self.rounds += 1
        out = self.out / str(self.rounds)
        text = {f"{part}source": self.args.data / f"{file}.en" for part, file in (("", "train"), ("valid_", "val"))}
        text |= {key.replace("source", "target"): path.with_suffix(".de") for key, path in text.items()}
        settings = text | SIZES | {
            "vocabulary": self.args.vocabulary, "batch_tokens": self.args.tokens, "updates": self.args.updates,
            "log_every": max(1, self.args.updates // 4), "validate_every": 10**6, "average": 1, "metric": "loss",
            "threads": self.args.threads, "precision": self.args.precision,
        }  # fmt: skip
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        _, memory, _ = measured([*HERE, "train", f"--out={out}", *flags], self.args.threads)
        lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        rates = [line["tokens_per_second"] for line in lines if "tokens_per_second" in line]
        return statistics.median(rates[1:]), memory

    def translate(self, model, sentences, beams):
        program = (
            "import sys, time, torch; from attnscope.capture import load_model;"
            "from attnscope_lineage.translation import translate_lines;"
            f"torch.set_num_threads({self.args.threads});"
            f"one = load_model({str(model)!r}, device='cpu'); lines = open({str(sentences)!r}).read().splitlines();"
            "start = time.monotonic();"
            f"found = translate_lines(one.model, one.tokenizer, lines, beams={beams});"
            "print('seconds', time.monotonic() - start);"
            f"open({str(self.out / f'beams{beams}')!r}, 'w').writelines(text + '\\n' for text in found.texts)"
        )
        _, memory, said = measured([sys.executable, "-c", program], self.args.threads)
        return float(said.split("seconds")[-1]), memory


class JoeyNMT:
    name = "JoeyNMT"

    def __init__(self, args, work, model):
        from transformers import AutoTokenizer

        self.args, self.work = args, work / "joeynmt"
        self.work.mkdir()
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.pieces = self.tokenizer.convert_ids_to_tokens(range(len(self.tokenizer)))
        (self.work / "voc.txt").write_text("\n".join(self.pieces[4:]) + "\n", encoding="utf-8")
        for file, name in (("train", "train"), ("val", "dev")):
            for side in ("en", "de"):
                self.cut(args.data / f"{file}.{side}", f"{name}.{side}")

    def cut(self, path, name):
        """A text as pieces with spaces between, which JoeyNMT takes as words."""
        lines = path.read_text(encoding="utf-8").splitlines()
        rows = [" ".join(self.tokenizer.convert_ids_to_tokens(ids[:-1])) for ids in self.ids(lines)]
        (self.work / name).write_text("\n".join(rows) + "\n", encoding="utf-8")

    def ids(self, lines):
        from attnscope_lineage.data import encode_lines

        return encode_lines(self.tokenizer, lines)

    def settings(self, folder, beams=1, test="dev"):
        side = {"max_length": 128, "level": "word", "voc_file": str(self.work / "voc.txt"), "lowercase": False}
        part = {
            "num_layers": 4, "num_heads": 4, "embeddings": {"embedding_dim": 128, "scale": True, "dropout": 0.0},
            "hidden_size": 128, "ff_size": 256, "dropout": 0.3, "layer_norm": "pre", "activation": "relu",
            "type": "transformer",
        }  # fmt: skip
        symbols = {f"{name}_token": self.pieces[place] for name, place in zip(SPECIALS, ORDER, strict=True)}
        symbols |= {f"{name}_id": number for number, name in enumerate(SPECIALS)}
        return {
            "name": "benchmark", "joeynmt_version": "2.3.0", "use_cuda": False, "model_dir": str(folder),
            "random_seed": 0, "num_workers": 0, "normalization": "tokens",
            "data": {
                "train": str(self.work / "train"), "dev": str(self.work / test), "test": str(self.work / test),
                "dataset_type": "plain", "src": {"lang": "en", **side}, "trg": {"lang": "de", **side},
                "special_symbols": symbols,
            },
            "testing": {
                "beam_size": beams, "beam_alpha": 1.0, "batch_size": 4096, "batch_type": "token",
                "max_output_length": 100, "eval_metrics": [], "load_model": str(folder / "ours.ckpt"),
            },
            "training": {
                "optimizer": "adamw", "adam_betas": [0.9, 0.98], "learning_rate": 0.002,
                "scheduling": "warmupinversesquareroot",
                "learning_rate_warmup": 500, "learning_rate_min": 0.0, "label_smoothing": 0.1, "loss": "crossentropy",
                "batch_size": self.args.tokens, "batch_type": "token", "clip_grad_norm": 1.0, "epochs": 100,
                "updates": self.args.updates, "validation_freq": 10**6, "logging_freq": max(1, self.args.updates // 4),
                "overwrite": True, "print_valid_sents": [],
            },
            "model": {
                "initializer": "xavier_uniform", "bias_initializer": "zeros", "embed_initializer": "xavier_uniform",
                "tied_embeddings": True, "tied_softmax": True, "encoder": part, "decoder": part,
            },
        }  # fmt: skip

    def run(self, mode, config, *flags):
        path = self.work / "config.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        command = [str(self.args.joeynmt), "-m", "joeynmt", mode, str(path), *flags]
        return measured(command, self.args.threads, cwd=self.work)

    def train(self):
        _, memory, said = self.run("train", self.settings(self.work / "trained"), "--skip-test")
        rates = [float(rate) for rate in re.findall(r"Tokens per Sec:\s*(\d+)", said)]
        return statistics.median(rates[1:]), memory

    def translate(self, model, sentences, beams):
        folder = self.work / "given"
        folder.mkdir(exist_ok=True)
        for side in ("en", "de"):  # the right translations are not looked at
            self.cut(sentences, f"test.{side}")
        torch.save({"model_state": as_joeynmt(load_file(model / "model.safetensors"))}, folder / "ours.ckpt")
        out = self.work / f"beams{beams}"
        _, memory, said = self.run("test", self.settings(folder, beams, "test"), "--output-path", str(out))
        seconds = [float(one) for one in re.findall(r"Generation took ([\d.]+)\[sec\]", said)]
        rows = (self.work / f"beams{beams}.test").read_text(encoding="utf-8").splitlines()
        words = [self.tokenizer.convert_tokens_to_ids(row.split()) for row in rows]
        self.made = [self.tokenizer.decode(ids).strip() for ids in words]
        return statistics.mean(seconds), memory


def as_joeynmt(ours):
    """Our weights under JoeyNMT's names."""
    attention = {"q_proj": "q_layer", "k_proj": "k_layer", "v_proj": "v_layer", "out_proj": "output_layer"}
    names = {"feed_forward.up": "feed_forward.pwff_layer.0", "feed_forward.down": "feed_forward.pwff_layer.3"}
    names["around_feed_forward.norm"] = "feed_forward.layer_norm"
    encoder = {"around_attention.norm": "layer_norm"} | names
    encoder |= {f"self_attention.{a}": f"src_src_att.{b}" for a, b in attention.items()}
    decoder = {"around_self.norm": "x_layer_norm", "around_cross.norm": "dec_layer_norm"} | names
    decoder |= {f"self_attention.{a}": f"trg_trg_att.{b}" for a, b in attention.items()}
    decoder |= {f"cross_attention.{a}": f"src_trg_att.{b}" for a, b in attention.items()}
    words = next(ours[name] for name in ours if name.endswith("embedding.weight"))
    words = torch.cat([words[list(ORDER)], words[len(ORDER) :]])
    found = {"src_embed.lut.weight": words, "trg_embed.lut.weight": words, "decoder.output_layer.weight": words}
    for side in ("encoder", "decoder"):
        found[f"{side}.pe.pe"] = sinusoidal_table(5000, words.shape[1])[None]
    for name, value in ours.items():
        side, _, rest = name.partition(".")
        if rest.startswith("norm."):
            found[f"{side}.layer_norm.{rest.removeprefix('norm.')}"] = value
        elif rest.startswith("layers."):
            _, layer, inner = rest.split(".", 2)
            part, _, kind = inner.rpartition(".")
            found[f"{side}.layers.{layer}.{(encoder if side == 'encoder' else decoder)[part]}.{kind}"] = value
    return {name: value.clone() for name, value in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="Folder with train.en, train.de, val.en, val.de.")
    parser.add_argument("--joeynmt", type=Path, required=True, help="Python of JoeyNMT's environment.")
    parser.add_argument("--model", type=Path, help="A trained folder, for translating; of the same sizes.")
    parser.add_argument("--test", type=Path, help="Sentences to translate; by default val.en.")
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=4096, help="Target tokens of an update.")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--precision",
        default="auto",
        help="Of our training (JoeyNMT's is float32 on a CPU): auto is bfloat16 if native.",
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(args, Path(folder))


def compare(args, work):
    ours = Ours(args, work)
    trained = [ours.train()]
    model = (args.model or work / "ours" / "1").absolute()
    joeynmt = JoeyNMT(args, work, model)
    both = {"attnscope": trained, "JoeyNMT": []}
    for number in range(args.rounds):
        both["JoeyNMT"].append(joeynmt.train())
        if number:
            both["attnscope"].append(ours.train())
    print(
        f"{args.threads} threads, {args.updates} updates of {args.tokens} tokens, precision {args.precision}, "
        f"{args.rounds} rounds in turns"
    )
    report("training, target tokens/s", both)
    lines = (args.test or args.data / "val.en").read_text(encoding="utf-8").splitlines()[: args.sentences]
    sentences = work / "sentences"
    sentences.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for beams in (1, 5):
        found = {"attnscope": [], "JoeyNMT": []}
        for _ in range(args.rounds):
            for one in (joeynmt, ours):
                seconds, memory = one.translate(model, sentences, beams)
                found[one.name].append((len(lines) / seconds, memory))
        report(f"{'greedy' if beams == 1 else f'beam {beams}'}, sentences/s", found)
        made = (ours.out / f"beams{beams}").read_text(encoding="utf-8").splitlines()
        same = sum(a == b for a, b in zip(made, joeynmt.made, strict=True))
        print(f"    the same sentence from both: {same} of {len(made)}")


def report(what, found):
    rates = {name: [rate for rate, _ in rows] for name, rows in found.items()}
    ratio = statistics.median(rates["attnscope"]) / statistics.median(rates["JoeyNMT"])
    print(f"{what}: {ratio:.2f} times JoeyNMT's")
    for name, rows in found.items():
        listed = " ".join(f"{rate:,.1f}" for rate in rates[name])
        print(
            f"    {name:10} {statistics.median(rates[name]):10,.1f} ({listed}); peak {max(m for _, m in rows):,.0f} MiB"
        )


if __name__ == "__main__":
    main()
