"""All text of a walk, in English and Japanese. Formulas are the same in both and stand with the steps."""

from __future__ import annotations

from attnscope.support.errors import AttnscopeError

_EN = {
    "title": "One head, step by step: layer {layer}, head {head} of {model}",
    "title.toy": "Self-attention, step by step: one head, random numbers",
    "title.module": "Self-attention, step by step: {model}",
    "place": "Layers and heads are counted from 0: {layers} layers, {heads} heads each. Attention module: {module}.",
    "place.toy": (
        "{texts} texts of {tokens} vectors of width {width}, drawn at random; the matrices are random too. Shown is the "
        "first text."
    ),
    "place.module": "{texts} texts of {tokens} vectors of width {width}. Shown is the first text.",
    "kinds": (
        "Layer {layer} is {this}. Of this encoder-decoder, the layers {self} are the encoder's; {causal} are the decoder's "
        "self-attention, {cross} its cross-attention."
    ),
    "kind.self": "self-attention of the encoder, which reads the source alone",
    "kind.causal": "self-attention of the decoder, which looks back at what it has read of the target",
    "kind.cross": "cross-attention, where the decoder looks at the source",
    "target.given": "The decoder reads the target that was given, one token late as in training: “{target}”",
    "target.own": (
        "No target was given, so the decoder reads the model's own translation (greedy), one token late as in training: "
        "“{target}”"
    ),
    "followed": "The row that is followed is that of token {token}, “{name}”; it is marked with ▸.",
    "tokens": "The sentence becomes tokens",
    "tokens.text": "The model does not read words but tokens, {count} of them here. Each has a position, from 0; ␣ is a space.",
    "tokens.pieces": ("The tokenizer splits some characters: {pieces} are the pieces of one, each a token of its own."),
    "tokens.causal": "The target becomes tokens",
    "tokens.cross": "Source and target become tokens",
    "tokens.target": (
        "The decoder reads {count} tokens: “{first}” to begin with, then the target. At each it has to say the one that "
        "follows."
    ),
    "X": "Each token is a vector: X",
    "X.first": (
        "What the first layer reads: a row for each token, made of its word vector (and, in many models, of a vector for "
        "its position)."
    ),
    "X.decoder": (
        "What the first layer of the decoder reads: a row for each token of the target, made of its word vector (and, in "
        "many models, of a vector for its position)."
    ),
    "X.later": "What layer {layer} reads: a row for each token, as the layers before have left it.",
    "X.toy": "A row for each token.",
    "X.memory": "In cross-attention, keys and values are made of other states, M: those that are looked at.",
    "QKV": "Three views of it: query, key, value",
    "QKV.text": (
        "The query says what a token is looking for, the key what it can be found by, the value what it hands over. The "
        "matrices are learned; each head has its own."
    ),
    "QKV.rope": (
        "This model turns queries and keys by an angle that grows with the position (RoPE): Q and K below are shown after "
        "the rotation R. So their products depend on the distance of two tokens, and are not of the form X W Xᵀ."
    ),
    "QKV.normalised": (
        "Between the matrices and the products, this model changes its queries and keys ({reason}): Q and K below are "
        "the model's own, as they enter the products. They are not a product of X and one matrix."
    ),
    "QKV.unknown": "Q and K below are the model's own; how it makes them of X was not found ({reason}).",
    "QKV.grouped": "Several heads share one key and value: {heads} heads have {kv_heads}.",
    "products": "How well does each query match each key? Q Kᵀ",
    "products.text": (
        "Each number is an inner product of a query (row) and a key (column): large where they point the same way. For "
        "“{name}” and “{best}”: {terms} … = {product}, summed over {width} columns."
    ),
    "scale": "Divide by √d_k",
    "scale.text": (
        "An inner product of {width} terms grows with their number. Divided by √{width} = {root}, the spread of the "
        "numbers falls from {before} to {after} (standard deviation) and no longer depends on the width."
    ),
    "scale.other": "This model's factor is {scale}, not 1/√{width} = {usual}: the spread goes from {before} to {after}.",
    "scale.without": (
        "What happens without it? The row of “{name}” would have an entropy of {bare} nats instead of {entropy} (at most "
        "{most}), and its largest weight would be {bare_top} instead of {top}. The mean entropy of all rows would be "
        "{mean_bare} instead of {mean}. The sharper a softmax, the less can be learned through it."
    ),
    "scale.cap": "Then this model bends large scores to stay below {cap}: {cap} tanh(score / {cap}).",
    "scale.bias": "Then this model adds a number for each pair, by its distance (a relative bias).",
    "mask": "Mask: who may look where",
    "mask.none": "Nothing is masked: each token may look at all {count}.",
    "mask.causal": (
        "Each token may look at itself and at what comes before it. What it may not see gets −∞, so that its weight will "
        "be 0. “{name}” may look at {seen} of {count}."
    ),
    "mask.other": (
        "Some pairs are masked, as in a window: they get −∞, so that their weight will be 0. “{name}” may look at "
        "{seen} of {count}."
    ),
    "softmax": "Softmax: scores become weights",
    "softmax.text": (
        "Each row of scores is turned into shares: positive, and together {total}. For “{name}” and “{best}”: "
        "exp({score}) / {denominator} = {weight}."
    ),
    "softmax.sink": "The rest goes to the head's learned sink, which holds no value: weight that looks at nothing.",
    "softmax.row": "The row of “{name}” in full",
    "softmax.top": "The row of “{name}”: its largest weights, in the order of the sentence",
    "sum": "The weighted sum of the values",
    "sum.text": (
        "What “{name}” takes along is the average of all values under its weights. Below the rows of O: the largest "
        "contributions to the one that is followed."
    ),
    "sum.toy": "The output has the shape {output}, the weights {weights}: texts, tokens, and width or tokens.",
    "concat": "The heads side by side",
    "concat.text": (
        "All {heads} heads do this at the same time with their own matrices. Their outputs are put side by side; this head "
        "fills the columns {first} to {last} of {width}."
    ),
    "result": "Output projection: the heads are mixed",
    "result.text": (
        "One more learned matrix mixes what the heads have found. Of the row of “{name}”, this head's part has the length "
        "{part}, all heads together {whole}. The layer adds this to what the token was."
    ),
    "result.unknown": "No matrix was found behind the heads, so the walk ends here.",
    "check": "Checked",
    "check.text": (
        "Every number above was computed here from X and the matrices, and compared with what the model itself computes. "
        "Largest difference, as a share of the largest number: {errors}."
    ),
    "check.toy": (
        "Every number above was computed here from X and the matrices, and compared with what `{model}` itself "
        "returns. Largest difference, as a share of the largest number: {errors}."
    ),
    "caution": (
        "A weight is a mixing coefficient, not an explanation: it says how much of a value enters the sum, not "
        "whether the output depends on it."
    ),
    "of": "{symbol}: {shape}",
    "part": "{symbol}: {shape}, of which {rows} rows",
    "row.others": "the other {count}",
    "row.sum": "sum",
    "column.token": "token",
    "column.product": "q·k",
    "column.scaled": "scaled",
    "column.score": "score",
    "column.weight": "weight",
    "column.value": "weight × value",
    "masked": "−∞",
    "allowed": "✓",
    "errors.Q": "Q",
    "errors.K": "K",
    "errors.V": "V",
    "errors.weights": "weights",
    "errors.head_output": "output of the head",
    "errors.result": "output of the layer",
}

_JA = {
    "title": "一つのヘッドを一歩ずつ: {model} の層 {layer}、ヘッド {head}",
    "title.toy": "自己注意を一歩ずつ: 一つのヘッド、乱数の入力",
    "title.module": "自己注意を一歩ずつ: {model}",
    "place": "層とヘッドは 0 から数えます。{layers} 層、各層 {heads} ヘッド。注意のモジュール: {module}。",
    "place.toy": (
        "幅 {width} のベクトル {tokens} 個からなる文章が {texts} つ。値は乱数で、行列も乱数です。一つ目の文章を示します。"
    ),
    "place.module": "幅 {width} のベクトル {tokens} 個からなる文章が {texts} つ。一つ目の文章を示します。",
    "kinds": (
        "層 {layer} は{this}です。このエンコーダ・デコーダの層のうち、{self} はエンコーダ、{causal} はデコーダの自己注意、{cross} は"
        "デコーダの交差注意です。"
    ),
    "kind.self": "エンコーダの自己注意で、原文だけを読む層",
    "kind.causal": "デコーダの自己注意で、訳文のうちすでに読んだ部分を振り返る層",
    "kind.cross": "デコーダが原文を見る交差注意の層",
    "target.given": "デコーダは、与えられた訳文を学習時と同じく一トークン遅れで読みます: 「{target}」",
    "target.own": (
        "訳文が与えられていないので、デコーダはモデル自身の訳文（貪欲法）を学習時と同じく一トークン遅れで読みます: 「{target}」"
    ),
    "followed": "追いかけるのは {token} 番のトークン「{name}」の行です。▸ の印を付けます。",
    "tokens": "文をトークンに分ける",
    "tokens.text": "モデルが読むのは単語ではなくトークンで、ここでは {count} 個です。それぞれに 0 から始まる位置があります。␣ は空白です。",
    "tokens.pieces": "一文字が複数のトークンに分かれることもあります。{pieces} は一つの文字の断片で、それぞれが一つのトークンです。",
    "tokens.causal": "訳文をトークンに分ける",
    "tokens.cross": "原文と訳文をトークンに分ける",
    "tokens.target": (
        "デコーダが読むのは {count} 個のトークンです。まず「{first}」、続いて訳文です。それぞれの位置で、次に来るトークンを"
        "言い当てます。"
    ),
    "X": "各トークンはベクトル: X",
    "X.first": (
        "最初の層が読むもの。一行が一つのトークンで、単語のベクトル（多くのモデルではこれに位置のベクトルを足したもの）"
        "からできています。"
    ),
    "X.decoder": (
        "デコーダの最初の層が読むもの。一行が訳文の一つのトークンで、単語のベクトル（多くのモデルではこれに位置のベクトルを"
        "足したもの）からできています。"
    ),
    "X.later": "層 {layer} が読むもの。一行が一つのトークンで、前の層までの計算を経ています。",
    "X.toy": "一行が一つのトークンです。",
    "X.memory": "交差注意では、キーとバリューは別の状態 M、つまり見られる側から作られます。",
    "QKV": "三つの写像: クエリ、キー、バリュー",
    "QKV.text": (
        "クエリは「何を探しているか」、キーは「何によって見つけられるか」、バリューは「何を渡すか」を表します。行列は学習される"
        "もので、ヘッドごとに異なります。"
    ),
    "QKV.rope": (
        "このモデルは、位置に比例した角度だけクエリとキーを回転させます（RoPE）。下の Q と K は回転 R の後の値です。"
        "そのため内積は二つのトークンの距離に依存し、X W Xᵀ の形にはなりません。"
    ),
    "QKV.normalised": (
        "このモデルは、行列を掛けてから内積を取るまでの間にクエリとキーを変えます（{reason}）。下の Q と K は、"
        "内積に入る時点でのモデル自身の値で、X と一つの行列の積ではありません。"
    ),
    "QKV.unknown": "下の Q と K はモデル自身の値です。X からどう作られるかは見つかりませんでした（{reason}）。",
    "QKV.grouped": "複数のヘッドがキーとバリューを共有しています。{heads} ヘッドに対して {kv_heads} 組です。",
    "products": "クエリとキーはどれだけ合うか: Q Kᵀ",
    "products.text": (
        "それぞれの数は、クエリ（行）とキー（列）の内積です。同じ向きを向いているほど大きくなります。「{name}」と「{best}」では "
        "{terms} … = {product}（{width} 列の和）。"
    ),
    "scale": "√d_k で割る",
    "scale.text": (
        "{width} 個の項の和である内積は、項の数とともに大きくなります。√{width} = {root} で割ると、値のばらつき"
        "（標準偏差）は {before} から {after} になり、幅によらなくなります。"
    ),
    "scale.other": "このモデルの係数は 1/√{width} = {usual} ではなく {scale} です。ばらつきは {before} から {after} になります。",
    "scale.without": (
        "割らなければどうなるか。「{name}」の行のエントロピーは {entropy} nat ではなく {bare} nat（最大 {most}）、最大の重みは "
        "{top} ではなく {bare_top} になります。全行のエントロピーの平均は {mean} ではなく {mean_bare} です。softmax が"
        "鋭くなるほど勾配は小さくなり、学習が進みにくくなります。"
    ),
    "scale.cap": "続いてこのモデルは、大きなスコアを {cap} 未満に抑えます: {cap} tanh(スコア / {cap})。",
    "scale.bias": "続いてこのモデルは、組ごとに距離で決まる数（相対位置バイアス）を足します。",
    "mask": "マスク: 誰がどこを見てよいか",
    "mask.none": "マスクはありません。どのトークンも {count} 個すべてを見られます。",
    "mask.causal": (
        "各トークンが見られるのは、自分自身とそれより前だけです。見てはならないところは −∞ になり、重みは 0 になります。"
        "「{name}」が見られるのは {count} 個のうち {seen} 個です。"
    ),
    "mask.other": (
        "一部の組は（窓などによって）マスクされ、−∞ になり、重みは 0 になります。「{name}」が見られるのは {count} 個のうち "
        "{seen} 個です。"
    ),
    "softmax": "softmax: スコアを重みにする",
    "softmax.text": (
        "スコアの各行を割合に変えます。どれも正で、和は {total} です。「{name}」と「{best}」では "
        "exp({score}) / {denominator} = {weight}。"
    ),
    "softmax.sink": "残りは、このヘッドが学習した受け皿（シンク）に行きます。バリューを持たず、何も見ない重みです。",
    "softmax.row": "「{name}」の行のすべて",
    "softmax.top": "「{name}」の行: 大きな重みを文の順に",
    "sum": "バリューの重み付き和",
    "sum.text": "「{name}」が受け取るのは、その重みによるバリューの平均です。O の下に、追いかけている行への大きな寄与を示します。",
    "sum.toy": "出力の形は {output}、重みの形は {weights} です（文章、トークン、そして幅またはトークン）。",
    "concat": "ヘッドを横に並べる",
    "concat.text": (
        "{heads} 個のヘッドすべてが、それぞれの行列で同じことを同時に行います。その出力を横に並べます。このヘッドは "
        "{width} 列のうち {first} から {last} 列を占めます。"
    ),
    "result": "出力の射影: ヘッドを混ぜる",
    "result.text": (
        "もう一つの学習された行列が、各ヘッドの見つけたものを混ぜます。「{name}」の行では、このヘッドの分の長さは {part}、"
        "全ヘッドでは {whole} です。層はこれを、もとのトークンのベクトルに足します。"
    ),
    "result.unknown": "ヘッドの後の行列は見つからなかったので、ここまでです。",
    "check": "検算",
    "check.text": (
        "上の数はすべて X と行列からここで計算し、モデル自身の計算と照合したものです。最大の差（最大の値に対する割合）: "
        "{errors}。"
    ),
    "check.toy": (
        "上の数はすべて X と行列からここで計算し、`{model}` 自身の出力と照合したものです。"
        "最大の差（最大の値に対する割合）: {errors}。"
    ),
    "caution": (
        "重みは混合の係数であって、説明ではありません。バリューがどれだけ和に入るかを示すもので、出力がそれに"
        "依存するかどうかは示しません。"
    ),
    "of": "{symbol}: {shape}",
    "part": "{symbol}: {shape}、そのうち {rows} 行",
    "row.others": "ほか {count} 個",
    "row.sum": "和",
    "column.token": "トークン",
    "column.product": "q·k",
    "column.scaled": "÷後",
    "column.score": "スコア",
    "column.weight": "重み",
    "column.value": "重み × バリュー",
    "masked": "−∞",
    "allowed": "✓",
    "errors.Q": "Q",
    "errors.K": "K",
    "errors.V": "V",
    "errors.weights": "重み",
    "errors.head_output": "ヘッドの出力",
    "errors.result": "層の出力",
}

LANGUAGES = {"en": _EN, "ja": _JA}


def words(language: str) -> dict[str, str]:
    """All text of a language, by key, with ``{places}`` to be filled."""
    if language not in LANGUAGES:
        raise AttnscopeError(f"language {language!r} is not known: choose {' or '.join(LANGUAGES)}")
    return LANGUAGES[language]
