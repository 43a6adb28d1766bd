"""What all agree on: a model, a rule, who takes part, and how many patients each has."""

from streaming_gp import linear, pvi

PATIENTS = {"clinic-a": 300, "clinic-b": 200, "clinic-c": 250}

model = linear.logistic_regression(4)
update = pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS())


def site(name, load=None):
    return pvi.Site(name, model, update, PATIENTS[name], load)
