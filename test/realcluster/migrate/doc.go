// Package migrate goes from kube-proxy to nftproxy and back on a real cluster, by
// the commands that docs/migrate.md gives to an operator, while clients of every
// kind use Services. It says for each step what it saw, and which requests failed.
//
// It has no other way to change the proxies than the page's commands. What it adds
// are mistakes that operators make, and looks at what each step should have done.
package migrate
