#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the readings of meters in twenty houses, on standard output, for meters.yaml: one row per hour and house. What runs in the
house, a pump, a heater or nothing, shows in the shape of the load over hours, not in its level.

    python3 examples/meters.py > meters.csv
    mfl run examples/meters.yaml --data meters=csv:meters.csv,window=24,stride=4,group=house,time=hour,features=[load,temperature],label=device,label_at=majority,test_fraction=0.2,normalise=columns
"""
import math
import random

draw = random.Random(5)
print('hour,house,load,temperature,device')
for house in range(20):
    base, phase, hour = draw.uniform(1.8, 2.2), draw.uniform(0, 2 * math.pi), 0
    while hour < 960:
        device = draw.choice(['none', 'pump', 'heater'])
        start = hour
        while hour < min(start + 48, 960):
            temperature = 15 + 8 * math.sin(2 * math.pi * hour / 24 + phase) + draw.gauss(0, 0.5)
            t = hour - start
            shape = {'none': 0.0, 'pump': 1.5 * (t % 6 < 2), 'heater': 1.5 * (0.5 + 0.5 * math.sin(2 * math.pi * t / 9))}[device]
            load = base + shape + 0.3 * math.sin(2 * math.pi * hour / 24) + draw.gauss(0, 0.2)
            print('%d,h%02d,%.3f,%.2f,%s' % (hour, house, load, temperature, device))
            hour += 1
