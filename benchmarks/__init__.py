"""Commands that print figures. Not tests: nothing here asserts a time, and nothing in the tests measures one."""
