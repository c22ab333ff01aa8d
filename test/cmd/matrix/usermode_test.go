package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), ".config")
	for _, c := range []struct{ name, option, isNow, lost string }{
		{"as asked", "", "", ""},
		{"a module that is part of the kernel", "CONFIG_VETH=m", "CONFIG_VETH=y", "CONFIG_VETH=m"},
		{"one not set", "CONFIG_IP_VS=m", "# CONFIG_IP_VS is not set", "CONFIG_IP_VS=m"},
	} {
		config := strings.Replace("\n"+userModeConfig, c.option+"\n", c.isNow+"\n", 1)
		if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
			t.Fatal(err)
		}
		err := checkConfig(file)
		if c.lost == "" && err != nil || c.lost != "" && (err == nil || !strings.HasSuffix(err.Error(), " "+c.lost)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
