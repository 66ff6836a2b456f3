#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a table of loans that never were, on standard output, for categories.yaml: numbers of very different size, and two
columns of names. The header declares their values: housing becomes three features (one-hot), grade one number.

    python3 examples/categories.py > loans.csv
    mfl run examples/categories.yaml --data loans=csv:loans.csv,test_fraction=0.2,normalise=columns
"""
import random

HOUSING, GRADES = ['own', 'rent', 'free'], ['a', 'b', 'c', 'd']
draw = random.Random(1)
print('age,income,housing:onehot(%s),grade:codes(%s),repaid' % ('|'.join(HOUSING), '|'.join(GRADES)))
for _ in range(4000):
    age, income = draw.randint(20, 70), draw.randint(12, 120) * 1000
    housing, grade = draw.choice(HOUSING), draw.choice(GRADES)
    score = (age - 45) / 20 + (income - 60000) / 30000 + {'own': 1.5, 'rent': -1.5, 'free': 0}[housing] - GRADES.index(grade)
    print('%d,%d,%s,%s,%s' % (age, income, housing, grade, 'yes' if score + draw.gauss(1.5, 0.7) > 0 else 'no'))
