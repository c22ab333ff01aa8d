package testnet_test

import (
	"testing"

	"nftproxy/test/lib/testnet/userns"
)

func TestMain(m *testing.M) { userns.Main(m) }
