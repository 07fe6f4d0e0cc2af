"""Pieces of tokens join to the text, whatever the tokenizer does with bytes and spaces."""

from tokenizers import Tokenizer, decoders, models

from tests.support.for_every import for_every
from whet.data.pieces import TokenPieces


class Bytes:
    """Every token is one byte; counts what it is asked."""

    def __init__(self):
        self.asked = 0

    def decode(self, tokens, skip_special_tokens):
        assert not skip_special_tokens
        self.asked += len(tokens)
        return bytes(tokens).decode("utf-8", "replace")


class Spaced:
    """As sentencepiece: a token may begin with a space, which is not written at the start of a text."""

    words = ("the", " old", " man", "ner", " ")

    def decode(self, tokens, skip_special_tokens):
        return "".join(self.words[token] for token in tokens).removeprefix(" ")


@for_every(["plain", "6 ≈ √36 ≥ 5", "👩‍🚀 and 漢字", "", "é" * 40, "a\u202eb\x1b[31m"])
def test_pieces_of_bytes_join_to_the_text(text):
    pieces = TokenPieces(Bytes())(list(text.encode()))
    assert "".join(pieces) == text and len(pieces) == len(text.encode())
    assert all("\ufffd" not in piece for piece in pieces)


def test_a_character_belongs_to_the_last_of_its_tokens():
    assert TokenPieces(Bytes())(list("a€b".encode())) == ["a", "", "", "€", "b"]


def test_bytes_that_are_no_text_are_read_once_and_not_again_with_every_token():
    tokenizer = Bytes()
    pieces = TokenPieces(tokenizer)([0xFF, 0xE2, 0x82] * 300)
    assert len(pieces) == 900 and "".join(pieces).count("\ufffd") >= 300
    assert tokenizer.asked < 900 * 30


def test_a_text_cut_within_a_character_keeps_its_remains():
    assert "".join(TokenPieces(Bytes())(list("a€".encode())[:-1])) == "a\ufffd"


def test_spaces_that_a_token_has_only_in_company_are_kept():
    assert TokenPieces(Spaced())([0, 1, 2, 3]) == ["the", " old", " man", "ner"]
    assert TokenPieces(Spaced())([1, 2]) == ["old", " man"]


def test_a_real_tokenizer_of_bytes():
    vocabulary = {"Ġ": 0, "a": 1, "Ġa": 2, "â": 3, "Ĥ": 4, "¬": 5}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("Ġ", "a")]))
    tokenizer.decoder = decoders.ByteLevel()
    assert TokenPieces(tokenizer)([1, 2, 3, 4, 5, 0, 1]) == ["a", " a", "", "", "€", " ", "a"]
