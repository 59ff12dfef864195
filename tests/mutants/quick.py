"""A plugin of pytest: an example that fails is enough, nobody needs the smallest one."""

from hypothesis import Phase, settings

settings.register_profile("mutants", deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
