"""Many related tasks, one linear model each: MOCHA beside a model per task and one model for all.

For your own: put one x and one y per task into `xs` and `ys`; `clusters` is about how many kinds of tasks you expect.
"""

import numpy as np

from polyfed.tasks import MochaCV, MochaEstimator

# Twenty-four people wear a sensor: 20 features, active or resting. Three kinds of people, nobody quite like another.
rng = np.random.default_rng(0)
kinds = rng.normal(size=(3, 20))
xs, ys, new_xs, new_ys = [], [], [], []
for person in range(24):
    w = kinds[person % 3] + 0.3 * rng.normal(size=20)
    x = rng.normal(size=(530, 20))
    y = np.where(x @ w + rng.normal(size=530) > 0, 1, -1)
    xs.append(x[:30])  # 30 rows to learn from, 500 to judge by
    ys.append(y[:30])
    new_xs.append(x[30:])
    new_ys.append(y[30:])

lams = (0.3, 3.0, 30.0)  # how strongly models are regularised, chosen by cross-validation for each of the three
alone = MochaEstimator(regulariser="independent", tol=0.01)
tied = MochaEstimator(regulariser="clustered", structure={"clusters": 3}, tol=0.01)
one_for_all = MochaCV(alone, lams=lams).fit([np.concatenate(xs)], [np.concatenate(ys)])
one_each = MochaCV(alone, lams=lams).fit(xs, ys)
mocha = MochaCV(tied, lams=lams).fit(xs, ys)

print("error on new rows, the mean over 24 people")
print(f"one model for all {1 - one_for_all.score([np.concatenate(new_xs)], [np.concatenate(new_ys)]):6.1%}")
print(f"one model each    {1 - one_each.score(new_xs, new_ys):6.1%}")
print(f"MOCHA             {1 - mocha.score(new_xs, new_ys):6.1%}")
