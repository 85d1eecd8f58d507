"""Are the values that references lead to those of the files, and can the result be opened?"""
