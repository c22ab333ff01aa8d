package aptget

import (
	"os"
	"path/filepath"
)

// IPTables returns a directory with the commands of iptables for one of the two interfaces of the kernel, "legacy" or
// "nft". Debian's package iptables has one program for each, which goes by the name under which it is started.
func IPTables(kind string) (dir string, err error) {
	program, err := Command("xtables-"+kind+"-multi", "iptables")
	if err != nil {
		return "", err
	}
	if dir, err = CacheDir("iptables-" + kind); err != nil {
		return "", err
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, what := range []string{"", "-save", "-restore"} {
			link := filepath.Join(dir, family+what)
			if to, err := os.Readlink(link); err == nil && to == program {
				continue
			}
			if err := replaceLink(program, link); err != nil {
				return "", err
			}
		}
	}
	return dir, nil
}

// replaceLink makes a link at once, since others may look at the same one.
func replaceLink(program, link string) error {
	made, err := os.MkdirTemp(filepath.Dir(link), "link-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(made)
	next := filepath.Join(made, "link")
	if err := os.Symlink(program, next); err != nil {
		return err
	}
	return os.Rename(next, link)
}
