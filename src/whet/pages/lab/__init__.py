"""The lab: small experiments on the real loss code, each a function from settings to a table of curves.

`whet.pages.lab.page.experiments` lists them. The static page holds their tables over a grid of settings; the
board computes them for any.
"""
