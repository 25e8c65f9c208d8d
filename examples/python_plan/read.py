"""Iterates a plan of C++, waveforms.cc: python read.py 'sound-{000000..000009}.tar'"""

import sys

import millrace as mr
import waveforms

loader = mr.PlanLoader(waveforms.Waveforms(sys.argv[1], seed=42))
seconds = 0.0
for key, rate, values in loader:
    seconds += len(values) / rate
print(f"{loader.skipped()['delivered']} files, {seconds:.1f} seconds")
