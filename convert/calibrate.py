"""placeholder"""


def auto_recipe(*a):
    raise NotImplementedError
