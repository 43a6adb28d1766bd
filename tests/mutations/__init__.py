"""Do the tests see a changed sign? ``make mutate`` changes one at a time, and runs them."""
