// Package takeover ensures that a node goes from another proxy, or from an earlier run of this one, to this run without
// a gap: it sees kube-proxy and its rules, processes that keep or rewrite our tables, and tables that earlier runs
// left, tells people of them, and removes what is certainly without a user.
//
// It does not know how other proxies' rules look (node/otherproxy does), and it makes no rules.
package takeover
