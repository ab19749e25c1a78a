"""Entity disambiguation (Yamada et al. 2022, arXiv 1909.00426): which entity does a mention in a text mean?"""
