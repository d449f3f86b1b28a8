"""The functions that come with Headrace, one file each."""
