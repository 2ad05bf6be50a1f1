"""What devices are and supply: the keys of their files, read, checked and changed; drafts of this machine's."""
