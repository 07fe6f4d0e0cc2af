"""Models: found and loaded by name, saved in checkpoints that can prove themselves, copied as a reference.

Importing this room does not import transformers; the first load does.
"""
