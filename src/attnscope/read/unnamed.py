"""Tokens of a model without a tokenizer: ids, whose names are their numbers."""

from typing import Any

from transformers import PreTrainedTokenizer

from attnscope.support.errors import AttnscopeError


class UnnamedTokens(PreTrainedTokenizer):
    """A vocabulary of numbers: it reads no text."""

    def __init__(self, count: int, **options: Any) -> None:
        self.count = count
        super().__init__(count=count, **options)

    @property
    def vocab_size(self) -> int:
        return self.count

    def get_vocab(self) -> dict[str, int]:
        return {str(number): number for number in range(self.count)}

    def save_vocabulary(self, *_: Any, **__: Any) -> tuple[str, ...]:
        return ()

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return " ".join(tokens)

    def _tokenize(self, *_: Any, **__: Any) -> list[str]:
        raise AttnscopeError(
            "found texts for a model object without its tokenizer: pass tokenizer=..., the model's folder, or token ids"
        )

    def _convert_token_to_id(self, token: str) -> int:
        return int(token)

    def _convert_id_to_token(self, index: int) -> str:
        return str(index)
