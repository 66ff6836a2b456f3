#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a table of insurance claims that never were, on standard output, for claims.yaml: two columns of codes, whose effect
depends on each other, and two numbers.

    python3 examples/claims.py > claims.csv
    mfl run examples/claims.yaml --data claims=csv:claims.csv,test_fraction=0.2,normalise=columns
"""
import random

draw = random.Random(7)
REGIONS, CARS = ['r%02d' % k for k in range(12)], ['c%02d' % k for k in range(20)]
risk = {(r, c): draw.gauss(0, 1) for r in range(3) for c in range(4)}
region_kind, car_kind = {r: draw.randrange(3) for r in REGIONS}, {c: draw.randrange(4) for c in CARS}
print('region:codes(%s),car:codes(%s),age,distance,claim' % ('|'.join(REGIONS), '|'.join(CARS)))
for _ in range(6000):
    region, car, age, distance = draw.choice(REGIONS), draw.choice(CARS), draw.randint(18, 80), draw.randint(2, 40) * 1000
    score = 2 * risk[region_kind[region], car_kind[car]] - (age - 49) / 25 + (distance - 21000) / 15000
    print('%s,%s,%d,%d,%s' % (region, car, age, distance, 'yes' if score + draw.gauss(0, 0.5) > 0 else 'no'))
