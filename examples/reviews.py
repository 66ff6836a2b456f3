#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes reviews that nobody wrote, on standard output, for reviews.yaml: a text and a label in each row. A seeded grammar
praises and blames; "not" turns a word around, and "but" makes the second half count.

    python3 examples/reviews.py > reviews.csv
    mfl run examples/reviews.yaml --data reviews=csv:reviews.csv,text=text,label=label,length=24,test_fraction=0.2
"""
import random

GOOD = 'good great lovely bright solid quick clever warm calm fresh'.split()
BAD = 'bad awful ugly dull weak slow silly cold loud stale'.split()
THINGS = 'room film phone meal book chair song lamp train coat'.split()
FILLERS = 'honestly well so anyway frankly today again maybe'.split()
draw = random.Random(3)


def clause():
    """Words, and whether they praise."""
    praises, turned = draw.random() < 0.5, draw.random() < 0.3
    word = draw.choice(GOOD if praises != turned else BAD)
    words = ['the', draw.choice(THINGS), 'was'] + ['not'] * turned + ['very'] * (draw.random() < 0.3) + [word]
    return [draw.choice(FILLERS)] * (draw.random() < 0.4) + words, praises


print('text,label')
for _ in range(4000):
    words, praises = clause()
    if draw.random() < 0.4:
        more, praises = clause()
        words = words + ['but'] + more
    print('"%s.",%s' % (' '.join(words).capitalize(), 'praise' if praises else 'blame'))
