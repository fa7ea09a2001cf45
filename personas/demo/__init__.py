"""The demo: two fictional companies, fifty personas, and vectors made from pairs written for this project.

`pairs/` and the two YAML files are the content; `recipes` and `catalog` read them, `vectors` runs the model over
the pairs, `seeding` puts everything into the database through personas/services.py.
"""
