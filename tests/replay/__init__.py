"""Captured dialogues, held again with a live broker.

dialogues     what was captured, in turns: what a client says and what it must hear
other_side    the half of a dialogue that the capture left out
comparison    how far an answer must equal the captured one
"""
